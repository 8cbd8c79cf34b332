//! A further target of exports: a replica that joins. It is the export to a peer with another commit: when
//! the target has everything, the copy becomes its own, and the export is cancelled at the source, which
//! serves as before.
//!
//! Two shards of the product take part. The controller and the network are doubles, of which only the commit
//! is new (`Cluster::commit`).

use crate::common::{access, config, owner, shard};
use honeycomb_server::{
    BlockOwner, Effect, MoveKey, MoveWord, PeerEvent, PeerKey, Post, PostPayload, Shard,
    VolumeParts,
};
use honeycomb_structures::{Outcome, Ticket};
use honeycomb_types::{
    BlockAt, BlockId, Epoch, Kind, LaneId, Sequence, ServerId, ShardIx, Time, Way,
};
use honeycomb_wire::messages::MapEntry;
use honeycomb_wire::{Op, RequestHeader, Status};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

const SIZE: usize = 1 << 20;
const COPY: u64 = 1;
const ALL: (u64, u64) = (0, u64::MAX);

/// The block of this server.
fn block(server: u32) -> BlockAt {
    BlockAt { block: BlockId::new(ServerId(server), ShardIx(0), 0), epoch: Epoch(1) }
}

/// A structure of one block, and the replica that joins.
struct Cluster {
    kind: Kind,
    source: Shard,
    replica: Shard,
    now: Time,
    writes: u64,
    /// Parts that the replica has not received yet.
    sent: VecDeque<(Op, Vec<u8>, PostPayload)>,
    joined: bool,
}

impl Cluster {
    fn new(kind: Kind) -> Cluster {
        let mut source = shard(ServerId(1), config(SIZE, 1));
        source.open(owner(block(1), kind, true), None).unwrap();
        let mut replica = shard(ServerId(2), config(SIZE, 1));
        let importing = BlockOwner { importing: COPY, ..owner(block(2), kind, true) };
        replica.open(importing, None).unwrap();
        let now = Time::from_millis(5000);
        Cluster { kind, source, replica, now, writes: 0, sent: VecDeque::new(), joined: false }
    }

    /// One write of a client to the source; false while the block is frozen for the replica.
    fn write(&mut self) -> bool {
        let n = self.writes + 1;
        let payload = [&n.to_le_bytes()[..], &[n as u8; 900]].concat();
        let key = [&[0][..], &(n % 200).to_le_bytes()].concat();
        let (op, args) = match self.kind {
            Kind::Kv => (Op::KvUpsert, key),
            Kind::Queue => (Op::QueuePut, Vec::new()),
            _ => (Op::FileAppend, Vec::new()),
        };
        let mut header = RequestHeader { at: block(1), grant: 1, ..RequestHeader::new(op) };
        (header.lane, header.sequence) = (LaneId(1), Sequence(n));
        header.payload_len = payload.len() as u32;
        let outcome =
            self.source.apply(self.now, &access(false), &header, &args, &payload, Ticket(n));
        let Outcome::Done(answer) = outcome else { panic!("a write was parked") };
        assert!(matches!(answer.status, Status::Ok | Status::Busy), "{answer:?}");
        self.writes += u64::from(answer.status == Status::Ok);
        answer.status == Status::Ok
    }

    /// The doubles of controller and network do one thing; false if there is nothing to do.
    fn advance(&mut self) -> bool {
        let continued = self.source.step(self.now);
        for effect in self.source.out().take_effects() {
            match effect {
                Effect::BeginMove { way: Way::Relocate, .. } => self.begin(),
                Effect::CommitMove { .. } => self.commit(),
                // It does not get a successor, and has room enough.
                Effect::Grow { .. } => {}
                other => panic!("{other:?}"),
            }
        }
        for post in self.source.out().take_posts() {
            if let Post::Send { op, args, payload, .. } = post {
                self.sent.push_back((op, args, payload));
            }
        }
        let Some((op, args, payload)) = self.sent.pop_front() else { return continued };
        let mut header = RequestHeader { at: block(2), ..RequestHeader::new(op) };
        header.payload_len = payload.bytes().len() as u32;
        let ticket = Ticket(1);
        let access = access(true);
        let outcome =
            self.replica.apply(self.now, &access, &header, &args, payload.bytes(), ticket);
        let Outcome::Done(answer) = outcome else { panic!("a part waits") };
        assert_eq!(answer.status, Status::Ok, "{op:?}: {answer:?}");
        let key = PeerKey::Move(MoveKey { source: block(1), id: COPY });
        self.source.peer_event(self.now, key, PeerEvent::Answered(answer.status));
        true
    }

    fn begin(&mut self) {
        let word = if self.joined {
            MoveWord::Refused(Status::Removed, "the replica has joined".into())
        } else {
            let BlockAt { block, epoch } = block(2);
            let (block, epoch, address) = (block.0, epoch.0, "replica:1".into());
            let entry = MapEntry { start: 0, end: u64::MAX, block, epoch, address };
            MoveWord::Begin { id: COPY, entry, address: Ok("127.0.0.1:1".parse().unwrap()) }
        };
        self.source.on_exports(self.now, |work| work.move_word(block(1), word));
    }

    /// The commit of a replica. The source of a relocation would get `MoveWord::Committed`, and depart.
    fn commit(&mut self) {
        self.replica.on_imports(self.now, |work| work.end(block(2), COPY, true)).unwrap();
        let stays = MoveWord::NotCommitted(Status::Removed, "the replica has joined".into());
        self.source.on_exports(self.now, |work| work.move_word(block(1), stays));
        self.joined = true;
    }
}

/// The content of a block in the form of a flush, its items sorted: the order of a store's differs.
fn content(shard: &mut Shard, now: Time, at: BlockAt) -> Vec<Vec<u8>> {
    let (copy, _) = shard.on_exports(now, |work| work.copy(at, ALL, 1)).unwrap();
    shard.on_exports(now, |work| work.end_copies(0, 1));
    let (parts, mut bytes): (VolumeParts, _) = (Arc::from([]), Vec::new());
    copy.write(&parts, &mut bytes).unwrap();
    // Each write is found by its number and 900 bytes.
    let mut writes: Vec<Vec<u8>> = bytes.windows(908).map(<[u8]>::to_vec).collect();
    writes.retain(|w| w[8..].iter().all(|byte| *byte == w[0]) && w[2..8] == [0; 6]);
    writes.sort();
    writes
}

#[test]
fn replica_joins_while_the_source_is_written_and_has_its_content() {
    for kind in [Kind::File, Kind::Queue, Kind::Kv] {
        let mut cluster = Cluster::new(kind);
        (0..300).for_each(|_| assert!(cluster.write()));
        cluster.source.on_exports(cluster.now, |work| work.evacuate(block(1))).unwrap();
        let mut meanwhile = 0;
        for _ in 0..10_000 {
            meanwhile += u64::from(!cluster.joined && cluster.writes < 600 && cluster.write());
            if !cluster.advance() {
                cluster.now = cluster.now + Duration::from_millis(1);
                cluster.source.tick(cluster.now);
            }
        }
        assert!(cluster.joined, "{kind}: the copy has stopped");
        assert!(meanwhile > 0, "{kind}: no write ran beside the copy");
        let now = cluster.now;
        let at_source = content(&mut cluster.source, now, block(1));
        assert!(at_source.len() >= 200, "{kind}: {} writes", at_source.len());
        assert_eq!(at_source, content(&mut cluster.replica, now, block(2)), "{kind}");
        // The source serves as before.
        assert!(cluster.write(), "{kind}");
        while cluster.advance() {}
    }
}
