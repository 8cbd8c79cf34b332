//! A long outage of the object store while memory is nearly full: acknowledged data is retained, refused
//! writes get the reason, and when the store is back, everything is written automatically.

use super::s3::{bucket, impatient};
use super::{NO_WAIT, all_free, flushed_to, look};
use honeycomb_client::{Client, Error, JobTicket};
use honeycomb_e2e::{eventually, file, kv, noise};
use honeycomb_env::{Clock, Entropy};
use honeycomb_faultstore::{Faults, Gateway, Outage};
use honeycomb_tiers::Flushed;
use honeycomb_types::PrefixId;
use honeycomb_wire::Status;
use std::time::Duration;

/// The duration of the outage, from `OUTAGE_SECONDS`.
fn seconds() -> u64 {
    let given = std::env::var("OUTAGE_SECONDS").ok();
    given.map_or(8, |text| text.parse().expect("OUTAGE_SECONDS is a number"))
}

/// The data of a prefix that will be flushed: the acknowledged pieces in order, and one unacknowledged piece,
/// which may exist or not.
struct Kept {
    to: String,
    kind: u64,
    pieces: Vec<Vec<u8>>,
    refused: Option<Vec<u8>>,
}

/// Puts the next piece, which has this number.
type Putter = Box<dyn FnMut(usize, &[u8]) -> Result<(), Error>>;

fn key_of(i: usize) -> Vec<u8> {
    format!("key-{i}").into_bytes()
}

/// Fills a prefix of its own, with a structure of the next kind, until it has enough or memory is full.
fn fill(client: &Client, job: &JobTicket, number: u64, entropy: &mut Entropy) -> Kept {
    let (path, to) = (format!("t{number}"), format!("out/{number}"));
    let mut kept = Kept { to: to.clone(), kind: number % 3, pieces: Vec::new(), refused: None };
    flushed_to(client, job, &path, &to, 1500);
    let mut put: Putter = match kept.kind {
        0 => {
            let f = file(client, job, &path);
            Box::new(move |_, piece| f.append(piece).map(|_| ()))
        }
        1 => {
            let q = client.create_queue(job.job, &path, 0, 0, false).unwrap();
            Box::new(move |_, piece| q.put(piece, NO_WAIT).map(|_| ()))
        }
        _ => {
            let k = kv(client, job, &path, 1);
            Box::new(move |i, piece| k.put(&key_of(i), piece).map(|_| ()))
        }
    };
    for i in 0..20 + entropy.below(20) as usize {
        let piece = noise(entropy.next_u64(), 2000 + entropy.below(4000) as usize);
        match put(i, &piece) {
            Ok(()) => kept.pieces.push(piece),
            Err(e) => {
                let known = [Status::OutOfMemory, Status::LeaseExpired, Status::Busy];
                assert!(known.contains(&e.status), "{e}");
                kept.refused = Some(piece);
                break;
            }
        }
    }
    kept
}

impl Kept {
    /// The flush contains the acknowledged pieces, and at most the one unacknowledged piece.
    fn is_in(&self, flushed: &Flushed) {
        flushed.check().unwrap();
        let found: Vec<Vec<u8>> = match self.kind {
            0 => {
                let mut rest = &flushed.file("").unwrap()[..];
                let mut found = Vec::new();
                for piece in self.pieces.iter().chain(&self.refused) {
                    let (head, tail) = rest.split_at(rest.len().min(piece.len()));
                    found.extend((!head.is_empty()).then(|| head.to_vec()));
                    rest = tail;
                }
                assert!(rest.is_empty(), "{}: bytes that nobody wrote", self.to);
                found
            }
            1 => flushed.queue("").unwrap().map(Result::unwrap).collect(),
            _ => {
                let mut found: Vec<_> = flushed.kv("").unwrap().map(Result::unwrap).collect();
                found.sort_by_key(|(key, _)| {
                    key[4..].iter().fold(0, |n, d| n * 10 + (d - b'0') as usize)
                });
                for (i, (key, _)) in found.iter().enumerate() {
                    assert_eq!(*key, key_of(i), "{}", self.to);
                }
                found.into_iter().map(|(_, value)| value).collect()
            }
        };
        let all: Vec<_> = self.pieces.iter().chain(&self.refused).cloned().collect();
        let least = self.pieces.len();
        assert!(
            found.len() >= least && found == all[..found.len()],
            "{}: not what was put",
            self.to
        );
    }
}

#[test]
fn a_long_outage_of_a_store_costs_nobody_a_byte_when_memory_is_nearly_full() {
    let Some(gateway) = Gateway::start() else { return };
    let (proxy, cluster) = impatient(&gateway, Faults::calm());
    let watcher = cluster.client(cluster.controller.token(), PrefixId(0));
    let (client, job) = cluster.job("job");
    // A job that is not affected by the outage.
    client.create_prefix(job.job, "live", &[], Default::default()).unwrap();
    let live = kv(&client, &job, "live", 1);

    let (clock, mut entropy, mut kept) = (Clock::start(), Entropy::seeded(11), Vec::new());
    let end = clock.now() + Duration::from_secs(seconds());
    let (mut full, mut turns) = (0, 0u64);
    while clock.now() < end {
        let kind = if turns % 2 == 0 { Outage::Silent } else { Outage::Reset };
        proxy.change(Faults { outage: Some(kind), ..Faults::calm() });
        turns += 1;
        let status = watcher.status().unwrap();
        if status.free * 10 > status.blocks {
            let number = kept.len() as u64;
            kept.push(fill(&client, &job, number, &mut entropy));
            continue;
        }
        full += 1;
        // Who lives reads and writes, and whoever wants more than there is hears of it soon.
        client.renew(job.job, &["live".into()]).unwrap();
        live.put(b"turn", &turns.to_le_bytes()).unwrap();
        let mut value = Vec::new();
        assert!(live.get(b"turn", &mut value).unwrap() && value == turns.to_le_bytes());
        let (asked, path) = (clock.now(), format!("more{turns}"));
        client.create_prefix(job.job, &path, &[], Default::default()).unwrap();
        let refused = client.create_kv(job.job, &path, status.blocks as u32, false).err();
        assert_eq!(refused.map(|e| e.status), Some(Status::OutOfMemory));
        assert!(clock.now().since(asked) < Duration::from_secs(5), "it was told late");
        client.remove_prefix(job.job, &path).unwrap();
        clock.sleep_until(clock.now() + Duration::from_millis(100));
    }
    let status = watcher.status().unwrap();
    assert!(full > 0, "memory was never full: {} of {} are free", status.free, status.blocks);
    assert_eq!(status.flushed, 0, "nothing can have been written");
    assert!(status.flush_failing > 0 && status.quarantined > 0);

    let back = clock.now();
    proxy.change(Faults::calm());
    let all = kept.len() as u64;
    eventually("the backlog is written", || watcher.status().unwrap().flushed == all);
    let took = clock.now().since(back);
    live.put(b"turn", b"after").unwrap();
    let direct = bucket(&gateway, "x");
    for (number, kept) in kept.iter().enumerate() {
        assert_eq!(look(&watcher, &job, &format!("t{number}")).flush, 3);
        let place = direct.place.join("job").join(&kept.to);
        kept.is_in(&Flushed::at(place, &direct.access).unwrap());
    }
    eventually("their blocks are free", || {
        watcher.status().unwrap().quarantined == 0 && watcher.status().unwrap().flush_failing == 0
    });
    drop((live, client));
    watcher.deregister_job(job.job).unwrap();
    eventually("all blocks are free", || all_free(&watcher));
    eprintln!("{all} prefixes were written {took:?} after {} s without a store", seconds());
}
