//! What goes wrong in one run. Each seed turns classes of faults on or off and draws their rates,
//! so that faults meet in many combinations and some runs are calm.

use honeycomb_env::Entropy;
use std::time::Duration;

/// Rates of one run, in events per million messages or per million steps.
#[derive(Clone, Debug, Default)]
pub struct Faults {
    /// Requests that never arrive.
    pub lose_request: u64,
    /// Replies that never arrive.
    pub lose_reply: u64,
    /// Requests that arrive twice.
    pub duplicate: u64,
    /// Messages that take up to `delay_max` instead of `delay_usual`.
    pub delay: u64,
    /// Longest usual way of a message.
    pub delay_usual: Duration,
    /// Longest way of a delayed message.
    pub delay_max: Duration,
    /// Connections that break in the middle of a large payload.
    pub cut_payload: u64,
    /// Operations after which a memory server crashes, and comes back under a new name.
    pub crash: u64,
    /// Prefixes whose owner stops renewing.
    pub abandon: u64,
    /// Structures that are removed while in use.
    pub remove: u64,
}

impl Faults {
    /// The faults of a seed.
    pub fn draw(entropy: &mut Entropy) -> Faults {
        let mut rate = |most: u64| if entropy.chance(500_000) { entropy.below(most) } else { 0 };
        let (lose_request, lose_reply) = (rate(100_000), rate(100_000));
        let (duplicate, delay) = (rate(300_000), rate(200_000));
        let (cut_payload, crash) = (rate(200_000), rate(4_000));
        let (abandon, remove) = (rate(12_000), rate(6_000));
        Faults {
            lose_request,
            lose_reply,
            duplicate,
            delay,
            delay_usual: Duration::from_micros(50 + entropy.below(500)),
            delay_max: Duration::from_millis(1 + entropy.below(1500)),
            cut_payload,
            crash,
            abandon,
            remove,
        }
    }

    /// Nothing goes wrong any more; what is under way may finish.
    pub fn heal(&mut self) {
        let delay_usual = self.delay_usual;
        *self = Faults { delay_usual, delay_max: delay_usual, ..Faults::default() };
    }
}
