//! The faults of one run. Each seed turns classes of faults on or off and draws their rates (swarm
//! testing), so that faults occur in many combinations and some runs are calm.

use crate::net::{Node, SERVERS, partition_lasts, stall_lasts};
use crate::world::{Event, LEASE_SHORT, World};
use honeycomb_env::Entropy;
use honeycomb_types::PolicyKind;
use honeycomb_types::limits::{SERVER_LOSS_DEFAULT_MS, SERVER_LOSS_MIN_MS, SERVER_SILENCE};
use std::time::Duration;

/// Rates of one run, in events per million messages or per million steps; a step is the start of an
/// operation.
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
    /// Longest usual delay of a message.
    pub delay_usual: Duration,
    /// Longest delay of a delayed message.
    pub delay_max: Duration,
    /// Connections that break in the middle of a large payload.
    pub cut_payload: u64,
    /// Memory servers that crash, and may restart with nothing.
    pub crash: u64,
    /// Controllers that are killed, or lose power, and restart with their log.
    pub crash_controller: u64,
    /// Logs that are replaced by a snapshot, in events per million ticks of the controller.
    pub renew_log: u64,
    /// Connections between a server and the controller that break.
    pub break_link: u64,
    /// Partitions of the network, of any shape.
    pub partition: u64,
    /// Nodes that freeze for a while.
    pub pause: u64,
    /// Prefixes whose owner stops renewing.
    pub abandon: u64,
    /// Structures that are removed while in use.
    pub remove: u64,
    /// Changes to the hierarchy: prefixes removed, readers declared, tasks committed, permissions
    /// changed.
    pub upheaval: u64,
    /// Requests of intruders: foreign grants, too few verbs.
    pub intrude: u64,
    /// Clock drift, in parts per million.
    pub clock_ppm: u64,
    /// Grants last this long, in milliseconds; 0 for as long as the run.
    pub grant_ms: u64,
    /// Blocks of each shard.
    pub blocks: u32,
    /// Quota of the second job in blocks; 0 for none.
    pub quota: u64,
    /// Values that are put and are too large for a block, in events per million puts.
    pub large: u64,
    /// Queues and stores are kept as small as possible.
    pub tiny: bool,
    /// Number of controller shards, which is not drawn with the rest (`lots::controllers`).
    pub controllers: usize,
    /// Servers that are drained, in events per million operations; also not drawn with the rest
    /// (`drain::rate`).
    pub drain: u64,
}

/// Settings of a cluster that a seed determines. They draw nothing from the run itself: the faults
/// of a seed are independent of them.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// How memory is shared.
    pub policy: PolicyKind,
    /// Milliseconds of silence after which a suspected server is lost.
    pub server_loss_ms: u32,
}

impl Shape {
    /// The shape of a seed, with so many controller shards.
    pub fn of(seed: u64, controllers: usize) -> Shape {
        let policy = crate::tiers::policy(seed, controllers);
        let each = [SERVER_LOSS_MIN_MS, SERVER_LOSS_MIN_MS, 6000, SERVER_LOSS_DEFAULT_MS];
        let server_loss_ms = each[Entropy::seeded(seed ^ 0x51_1e7).below(4) as usize];
        Shape { policy, server_loss_ms }
    }
}

impl Faults {
    /// The faults of a seed.
    pub fn draw(entropy: &mut Entropy) -> Faults {
        let mut rate =
            |most: u64| if entropy.chance(500_000) { 1 + entropy.below(most) } else { 0 };
        let (lose_request, lose_reply) = (rate(100_000), rate(100_000));
        let (duplicate, delay) = (rate(300_000), rate(200_000));
        let (cut_payload, crash) = (rate(200_000), rate(4_000));
        let (crash_controller, break_link) = (rate(4_000), rate(2_000));
        let (partition, pause) = (rate(8_000), rate(8_000));
        let (abandon, remove) = (rate(12_000), rate(6_000));
        let (upheaval, intrude) = (rate(15_000), rate(10_000));
        let (clock_ppm, grant_ms) = (rate(1000), 100 * rate(20));
        let tiny = entropy.chance(330_000);
        let large = [0, 0, 100_000, 400_000][entropy.below(4) as usize];
        Faults {
            lose_request,
            lose_reply,
            duplicate,
            delay,
            delay_usual: Duration::from_micros(50 + entropy.below(500)),
            delay_max: Duration::from_millis(1 + entropy.below(1500)),
            cut_payload,
            crash,
            crash_controller,
            renew_log: 5_000,
            break_link,
            partition,
            pause,
            abandon,
            remove,
            upheaval,
            intrude,
            clock_ppm,
            grant_ms,
            blocks: if tiny { 5 } else { 8 + entropy.below(6) as u32 },
            quota: if entropy.chance(500_000) { 6 + entropy.below(12) } else { 0 },
            tiny,
            large,
            controllers: 1,
            drain: 0,
        }
    }

    /// The names of the classes that this run has.
    pub fn classes(&self) -> Vec<&'static str> {
        let all = [
            ("loss", self.lose_request + self.lose_reply),
            ("duplication", self.duplicate),
            ("delay", self.delay),
            ("cut", self.cut_payload),
            ("crash", self.crash),
            ("controller", self.crash_controller),
            ("link", self.break_link),
            ("partition", self.partition),
            ("pause", self.pause),
            ("abandon", self.abandon),
            ("remove", self.remove),
            ("upheaval", self.upheaval),
            ("intruder", self.intrude),
            ("clocks", self.clock_ppm),
            ("grants", self.grant_ms),
            ("quota", self.quota),
            ("tiny", u64::from(self.tiny)),
            ("large values", self.large),
            ("drain", self.drain),
            ("controller shards", self.controllers as u64 - 1),
        ];
        all.into_iter().filter(|(_, rate)| *rate > 0).map(|(name, _)| name).collect()
    }

    /// Ends all faults; operations in progress may finish. Clocks stay as they are.
    pub fn heal(&mut self) {
        *self = Faults {
            delay_usual: self.delay_usual,
            delay_max: self.delay_usual,
            clock_ppm: self.clock_ppm,
            grant_ms: self.grant_ms,
            blocks: self.blocks,
            quota: self.quota,
            tiny: self.tiny,
            controllers: self.controllers,
            ..Faults::default()
        };
    }
}

impl World {
    /// Server and controller lose a connection: one of them learns of it first.
    pub fn break_link(&mut self, server: usize, link: u64) {
        let after = self.way();
        self.schedule(after, Event::LinkClosed { server, link });
        let after = self.way();
        self.schedule(after, Event::LinkLost { server, link });
    }

    /// Injects faults of nodes and network at the start of an operation.
    pub fn disturb(&mut self) {
        self.disturb_servers();
        self.copy_block();
        if self.rng.chance(self.faults.crash) {
            let server = self.rng.below(SERVERS as u64) as usize;
            self.crash(server);
        }
        if self.rng.chance(self.faults.crash_controller) {
            self.crash_controllers();
        }
        if self.rng.chance(self.faults.break_link) {
            self.fault("broken link");
            let server = self.rng.below(SERVERS as u64) as usize;
            let ix = self.some_controller();
            if let Some(link) = self.servers[server].members[ix].link {
                self.break_link(server, link);
            }
        }
        if self.rng.chance(self.faults.partition) {
            let until = self.now + partition_lasts(&mut self.rng);
            let shape = self.net.partition(&mut self.rng, until);
            self.fault(shape);
        }
        if self.rng.chance(self.faults.pause) {
            let node = Node::draw(&mut self.rng);
            let lasts = stall_lasts(&mut self.rng);
            self.fault(match lasts {
                _ if node == Node::Controller && lasts > SERVER_SILENCE => {
                    "pause of the controller longer than the silence of the dead"
                }
                _ if node == Node::Controller => "pause of the controller",
                lasts if lasts > SERVER_SILENCE => "pause longer than the silence of the dead",
                lasts if lasts > LEASE_SHORT => "pause longer than a lease",
                _ => "short pause",
            });
            self.net.pause(node, self.now + lasts);
        }
    }
}

/// A time between the two, with every order of magnitude equally likely.
pub fn long_or_short(entropy: &mut Entropy, least: Duration, most: Duration) -> Duration {
    let octaves = (most.as_nanos() / least.as_nanos().max(1)).ilog2() as u64 + 1;
    let shift = entropy.below(octaves);
    let base = least.as_nanos() as u64;
    let drawn = (base << shift) + entropy.below(base << shift);
    Duration::from_nanos(drawn.min(most.as_nanos() as u64))
}
