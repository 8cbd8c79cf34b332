//! Requests and messages that need a capability which the kind of a block does not have.

use crate::common::{access, config, owner, shard};
use honeycomb_server::{BlockMessage, Shard};
use honeycomb_structures::{Outcome, Successor, Ticket};
use honeycomb_types::{BlockAt, BlockId, Epoch, Kind, ServerId, ShardIx, Time};
use honeycomb_wire::notice::{Filter, SubscribeArgs, kinds};
use honeycomb_wire::{Op, RequestHeader, Status};

const SERVER: ServerId = ServerId(1);
const NOW: Time = Time(5_000_000_000);

fn block() -> BlockAt {
    BlockAt { block: BlockId::new(SERVER, ShardIx(0), 0), epoch: Epoch(1) }
}

/// A shard with one empty block of this kind.
fn shard_of(kind: Kind) -> Shard {
    let mut shard = shard(SERVER, config(64 << 10, 8));
    shard.open(owner(block(), kind, true)).unwrap();
    shard.take_effects();
    shard
}

/// A kv grows by splits, which its shard plans: nothing follows from the answers that a tail gets.
#[test]
fn a_kv_block_stays_as_it_is_whatever_the_controller_says_about_its_neighbours() {
    let messages = [
        BlockMessage::Successor(Successor::Ready(vec![1, 2, 3])),
        BlockMessage::Successor(Successor::Denied(Status::OutOfMemory, "full".into())),
        BlockMessage::Ahead { items: 5, bytes: 500 },
        BlockMessage::TakenReceived,
    ];
    for message in messages {
        let mut shard = shard_of(Kind::Kv);
        let before = (shard.deadline(), format!("{:?}", shard.holdings()));
        shard.receive(NOW, block(), message.clone());
        assert_eq!(shard.take_effects(), [], "{message:?}");
        assert_eq!((shard.deadline(), format!("{:?}", shard.holdings())), before, "{message:?}");
        assert!(shard.completed().is_none(), "{message:?}");
    }
}

/// A message to a tail does have effects: the test above could otherwise not fail.
#[test]
fn a_file_block_that_gets_a_successor_notes_when_to_return_it() {
    let mut shard = shard_of(Kind::File);
    assert_eq!(shard.deadline(), None);
    shard.receive(NOW, block(), BlockMessage::Successor(Successor::Ready(vec![1, 2, 3])));
    assert!(shard.deadline().is_some_and(|due| due > NOW));
}

#[test]
fn a_subscription_to_a_kind_that_reports_no_changes_is_refused_by_name() {
    let subscribe = |kind| {
        let args = SubscribeArgs { subscription: 1, kinds: kinds::ALL, filter: Filter::All };
        let args = args.encode();
        let mut header =
            RequestHeader { at: block(), grant: 1, ..RequestHeader::new(Op::Subscribe) };
        header.args_len = args.len() as u32;
        let mut shard = shard_of(kind);
        match shard.apply(NOW, &access(false), &header, &args, &[], Ticket(1)) {
            Outcome::Done(answer) => answer,
            Outcome::Parked => panic!("a subscription does not wait"),
        }
    };
    for kind in [Kind::File, Kind::Queue, Kind::Kv] {
        assert_eq!(subscribe(kind).status, Status::Ok, "{kind:?}");
    }
    let refused = subscribe(Kind::Extents);
    assert_eq!(refused.status, Status::WrongKind);
    assert_eq!(String::from_utf8_lossy(&refused.args), "a 'extents' reports no changes");
}
