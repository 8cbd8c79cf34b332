//! The network between the nodes, and their clocks: partitions, frozen nodes, the order of
//! connections, and each node's time.

use crate::faults::long_or_short;
use honeycomb_env::Entropy;
use honeycomb_types::Time;
use honeycomb_types::limits::SERVER_SILENCE;
use std::collections::BTreeMap;
use std::time::Duration;

/// Memory servers of a world.
pub const SERVERS: usize = 3;
/// Client processes of a world, with one session each.
pub const CLIENTS: usize = 3;
/// The lease of jobs and sessions.
pub const LEASE: Duration = Duration::from_millis(500);
const NODES: usize = 1 + SERVERS + CLIENTS;

/// A process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Node {
    Controller,
    Server(usize),
    Client(usize),
}

impl Node {
    fn index(self) -> usize {
        match self {
            Node::Controller => 0,
            Node::Server(n) => 1 + n,
            Node::Client(n) => 1 + SERVERS + n,
        }
    }

    fn of(index: usize) -> Node {
        match index {
            0 => Node::Controller,
            n if n <= SERVERS => Node::Server(n - 1),
            n => Node::Client(n - 1 - SERVERS),
        }
    }

    /// Any node.
    pub fn draw(entropy: &mut Entropy) -> Node {
        Node::of(entropy.below(NODES as u64) as usize)
    }
}

/// A node's clock: its start and its rate.
#[derive(Clone, Copy, Debug, Default)]
struct NodeClock {
    begin: u64,
    ppm: i64,
}

/// The state of the network.
#[derive(Debug)]
pub struct Net {
    /// Until when messages cannot get from one node to another.
    cut: [[Time; NODES]; NODES],
    /// Until when a node is frozen.
    still: [Time; NODES],
    clocks: [NodeClock; NODES],
    /// When the last message of a connection that keeps order arrives.
    arrived: BTreeMap<(u64, Node), Time>,
}

impl Net {
    /// A network without partitions; clocks that drift by up to `ppm`.
    pub fn new(entropy: &mut Entropy, ppm: u64) -> Net {
        let clocks = std::array::from_fn(|_| {
            let ppm = if ppm == 0 { 0 } else { entropy.below(2 * ppm + 1) as i64 - ppm as i64 };
            // Clocks have separate origins: values of two clocks cannot be compared.
            NodeClock { begin: entropy.below(1_000_000_000_000), ppm }
        });
        Net {
            cut: [[Time::ZERO; NODES]; NODES],
            still: [Time::ZERO; NODES],
            clocks,
            arrived: BTreeMap::new(),
        }
    }

    /// The value of a node's clock.
    pub fn local(&self, node: Node, now: Time) -> Time {
        let NodeClock { begin, ppm } = self.clocks[node.index()];
        let drift = now.0 as i128 * ppm as i128 / 1_000_000;
        Time((begin as i128 + now.0 as i128 + drift) as u64)
    }

    /// Until when messages from one node to another cannot arrive.
    pub fn cut_until(&self, from: Node, to: Node) -> Time {
        self.cut[from.index()][to.index()]
    }

    /// Until when a node is frozen.
    pub fn still_until(&self, node: Node) -> Time {
        self.still[node.index()]
    }

    /// Freezes a node.
    pub fn pause(&mut self, node: Node, until: Time) {
        let still = &mut self.still[node.index()];
        *still = (*still).max(until);
    }

    /// The arrival time of a message on a connection, at `at` or after the earlier messages of the
    /// connection.
    pub fn in_order(&mut self, connection: u64, to: Node, at: Time) -> Time {
        let last = self.arrived.entry((connection, to)).or_default();
        *last = at.max(Time(last.0 + 1));
        *last
    }

    /// When all nodes run and all messages on connections have arrived.
    pub fn settled_at(&self) -> Time {
        let times = self.still.iter().chain(self.arrived.values());
        times.copied().max().unwrap_or_default()
    }

    /// Cuts one direction until a time.
    pub fn cut(&mut self, from: Node, to: Node, until: Time) {
        let way = &mut self.cut[from.index()][to.index()];
        *way = (*way).max(until);
    }

    /// Cuts all directions to and from a node until a time.
    pub fn isolate(&mut self, node: Node, until: Time) {
        for other in (0..NODES).map(Node::of).filter(|other| *other != node) {
            self.cut(node, other, until);
            self.cut(other, node, until);
        }
    }

    /// Cuts some directions until a time; returns the name of the shape.
    pub fn partition(&mut self, entropy: &mut Entropy, until: Time) -> &'static str {
        let mut cut = |from: usize, to: usize| {
            let way = &mut self.cut[from][to];
            *way = (*way).max(until);
        };
        let one = entropy.below(NODES as u64) as usize;
        let other = (one + 1 + entropy.below(NODES as u64 - 1) as usize) % NODES;
        let side = entropy.next_u64();
        let pairs = || (0..NODES).flat_map(|a| (0..NODES).map(move |b| (a, b)));
        match entropy.below(5) {
            0 => {
                pairs().filter(|(a, b)| (*a == one) != (*b == one)).for_each(|(a, b)| cut(a, b));
                "isolated node"
            }
            1 => {
                let left = |n: usize| side >> n & 1 == 0;
                pairs().filter(|(a, b)| left(*a) != left(*b)).for_each(|(a, b)| cut(a, b));
                "halves"
            }
            2 => {
                // One node is on both sides.
                let left = |n: usize| side >> n & 1 == 0;
                let apart = |a: usize, b: usize| left(a) != left(b) && a != one && b != one;
                pairs().filter(|(a, b)| apart(*a, *b)).for_each(|(a, b)| cut(a, b));
                "bridge"
            }
            3 => {
                cut(one, other);
                "one-way partition"
            }
            _ => {
                cut(one, other);
                cut(other, one);
                "cut link"
            }
        }
    }

    /// Ends all partitions. Frozen nodes resume at their time, because messages that arrived
    /// meanwhile must be processed in order.
    pub fn heal(&mut self) {
        self.cut = [[Time::ZERO; NODES]; NODES];
    }
}

/// The length of a node's stall: from a hiccup to ten leases.
pub fn stall_lasts(entropy: &mut Entropy) -> Duration {
    if entropy.chance(250_000) {
        return trouble_lasts(entropy);
    }
    long_or_short(entropy, Duration::from_millis(50), 10 * LEASE)
}

/// The duration of a partition: one in eight lasts from a suspicion to longer than any silence
/// after which a server is lost.
pub fn partition_lasts(entropy: &mut Entropy) -> Duration {
    if entropy.chance(125_000) {
        return long_or_short(entropy, SERVER_SILENCE, Duration::from_secs(20));
    }
    trouble_lasts(entropy)
}

/// The duration of other faults: from shorter than any patience to longer than leases and the
/// silence after which a server is suspected.
pub fn trouble_lasts(entropy: &mut Entropy) -> Duration {
    long_or_short(entropy, Duration::from_millis(1), Duration::from_secs(4))
}
