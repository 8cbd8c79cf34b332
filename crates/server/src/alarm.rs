//! The alarms of lower tiers, for the operators of the cluster.
//!
//! If an object store cannot be reached, or a disk refuses writes, the operation is retried, and the alarm
//! ends with its first success. Bytes that cannot be read as they were written are lost; that alarm lasts as
//! long as the server.

use crate::spill::IoDone;
use honeycomb_types::{AlarmKind, Time};
use honeycomb_wire::messages::TierAlarm;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard};

/// The operations of a tier, each of which may fail while the others work.
pub(crate) const WAYS: [&str; 3] = ["accepts blocks", "can be read", "frees space"];
/// The last index is that of lost data.
const LOST: usize = WAYS.len();
/// Bytes of a reason that are reported.
const WHY_SHOWN: usize = 300;

/// A problem.
#[derive(Clone, Debug)]
struct Trouble {
    kind: AlarmKind,
    why: String,
    since: Time,
    tried: Time,
}

/// The alarms of one tier. Shared by the threads that use the tier and the reporting thread.
#[derive(Debug)]
pub(crate) struct Alarms {
    /// The tier's name for people.
    name: String,
    any: AtomicBool,
    troubles: Mutex<[Option<Trouble>; LOST + 1]>,
}

impl Alarms {
    /// For a tier without problems.
    pub fn of(name: String) -> Alarms {
        Alarms { name, any: AtomicBool::new(false), troubles: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, [Option<Trouble>; LOST + 1]> {
        self.troubles.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Notes the outcome of an operation; a new problem is printed once.
    pub fn heard(&self, way: usize, done: &IoDone, now: Time) {
        let (place, kind, why) = match done {
            IoDone::Away(why) => (way, AlarmKind::Away, why.clone()),
            // The second operation is reading, which has already been retried.
            IoDone::Failed(why) if way == 1 => {
                (LOST, AlarmKind::Lost, format!("data on {} is lost: {why}", self.name))
            }
            IoDone::Failed(why) => {
                (way, AlarmKind::Refuses, format!("{} no longer {}: {why}", self.name, WAYS[way]))
            }
            _ if self.any.load(Relaxed) => return self.mended(way),
            _ => return,
        };
        self.any.store(true, Relaxed);
        let mut troubles = self.lock();
        let known = troubles[place].as_ref().filter(|known| known.kind == kind);
        let since = known.map_or(now, |known| known.since);
        if known.is_none() {
            let tail = match kind {
                AlarmKind::Lost => "",
                _ => "; no data is lost, and every operation is retried",
            };
            eprintln!("honeycomb: {why}{tail}");
        }
        troubles[place] = Some(Trouble { kind, why, since, tried: now });
    }

    fn mended(&self, way: usize) {
        let mut troubles = self.lock();
        if troubles[way].take().is_some() {
            eprintln!("honeycomb: {} {} again", self.name, WAYS[way]);
        }
        self.any.store(troubles.iter().any(Option::is_some), Relaxed);
    }

    /// The present alarms, one of each kind, as reported to the controller for the tier with this number.
    pub fn report(&self, tier: u8, now: Time) -> Vec<TierAlarm> {
        if !self.any.load(Relaxed) {
            return Vec::new();
        }
        let mut report: Vec<TierAlarm> = Vec::new();
        for trouble in self.lock().iter().flatten() {
            let (kind, ms) = (trouble.kind.code(), |at| now.since(at).as_millis() as u64);
            let (age_ms, tried_ms) = (ms(trouble.since), ms(trouble.tried));
            match report.iter_mut().find(|alarm| alarm.kind == kind) {
                Some(alarm) => {
                    alarm.age_ms = alarm.age_ms.max(age_ms);
                    alarm.tried_ms = alarm.tried_ms.min(tried_ms);
                }
                None => {
                    let why = shown(&trouble.why).to_owned();
                    report.push(TierAlarm { tier, kind, why, age_ms, tried_ms });
                }
            }
        }
        report
    }
}

fn shown(why: &str) -> &str {
    let end = (0..=WHY_SHOWN.min(why.len())).rev().find(|&at| why.is_char_boundary(at));
    &why[..end.unwrap_or(0)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn kinds(alarms: &Alarms, now: Time) -> Vec<(AlarmKind, u64, u64)> {
        let report = alarms.report(2, now);
        assert!(report.iter().all(|alarm| alarm.tier == 2 && alarm.why.len() <= WHY_SHOWN));
        let kind = |code| AlarmKind::from_code(code).expect("one that there is");
        report.iter().map(|alarm| (kind(alarm.kind), alarm.age_ms, alarm.tried_ms)).collect()
    }

    #[test]
    fn an_alarm_lasts_until_the_same_thing_is_done_again() {
        use AlarmKind::{Away, Lost, Refuses};
        let alarms = Alarms::of("the disk at /d".to_owned());
        let at = |ms| Time::ZERO + Duration::from_millis(ms);
        let written = IoDone::Written(crate::Sums::none(1));
        alarms.heard(0, &written, at(0));
        assert_eq!(kinds(&alarms, at(0)), []);
        alarms.heard(0, &IoDone::Away("é".repeat(WHY_SHOWN)), at(10));
        alarms.heard(1, &IoDone::Away("also".to_owned()), at(20));
        alarms.heard(0, &IoDone::Away("still".to_owned()), at(30));
        assert_eq!(kinds(&alarms, at(50)), [(Away, 40, 20)]);
        // One of the two works again, and then the other.
        alarms.heard(0, &written, at(60));
        assert_eq!(kinds(&alarms, at(60)), [(Away, 40, 40)]);
        alarms.heard(2, &IoDone::Discarded, at(60));
        alarms.heard(0, &IoDone::Failed("no space".to_owned()), at(70));
        assert_eq!(kinds(&alarms, at(70)), [(Refuses, 0, 0), (Away, 50, 50)]);
        assert!(
            alarms.report(1, at(70))[0].why.contains("the disk at /d no longer accepts blocks")
        );
        alarms.heard(0, &written, at(80));
        // A successful read does not restore lost data.
        alarms.heard(1, &IoDone::Failed("other bytes".to_owned()), at(90));
        alarms.heard(1, &written, at(100));
        assert_eq!(kinds(&alarms, at(100)), [(Lost, 10, 10)]);
    }
}
