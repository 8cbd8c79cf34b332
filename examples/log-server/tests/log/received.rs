//! The state of a log's block as another server sends it.

use honeycomb_structures::{
    Answer, Backing, Op, Opening, Operation, Outcome, Reclaimer, Status, StructureKind, Ticket,
    Time,
};
use honeycomb_wire::data::MovedArgs;
use honeycomb_wire::messages::{MapEntry, MoveDoneRequest, MoveStateRequest};
use honeycomb_wire::{Field, checksum};
use log_structure::Log;

const BLOCK: usize = 64 << 10;

/// The answer of a new block to this state, which is all that the other block has.
fn receive(state: &[u8]) -> Answer {
    let mut block = Backing::map(BLOCK, &Reclaimer::inline()).unwrap();
    let mut structure = Log.open(&Opening { importing: 7, ..Opening::alone(BLOCK) });
    let mut run = |op, args: &[u8], payload: &[u8]| {
        let (now, ticket) = (Time(1_000_000_000), Ticket(1));
        let operation = Operation { now, ticket, op, args, wait_until: now };
        match structure.apply(&mut block, &operation, payload) {
            Outcome::Done(answer) => answer,
            Outcome::Parked => panic!("a part of a move does not wait"),
        }
    };
    let (offset, length, checksum) = (0, state.len() as u64, checksum(state));
    let part = MoveStateRequest { move_id: 7, offset, length, checksum };
    assert_eq!(run(Op::MoveState, &part.encode(), state).status, Status::Ok);
    let done = MoveDoneRequest { move_id: 7, entries: 1, bytes: 0 };
    run(Op::MoveDone, &done.encode(), b"")
}

/// The server ended when it sent a subscriber of the block to the successor.
#[test]
fn received_block_with_an_invalid_successor_is_refused() {
    let entry = MapEntry { start: 0, end: u64::MAX, block: 5, epoch: 1, address: "s:1".into() };
    let valid = MovedArgs { version: 2, entry }.encode();
    let counts = [0_u8; 5 * 8];
    for (successor, expected) in [
        (&valid[..], Status::Ok),
        (&valid[1..], Status::BadFrame),
        (&b"the next block"[..], Status::BadFrame),
        (&b""[..], Status::BadFrame),
    ] {
        let answer = receive(&[&counts, &[0, 1][..], successor].concat());
        assert_eq!(answer.status, expected, "{successor:?}");
        let text = String::from_utf8_lossy(&answer.args).into_owned();
        assert!(expected == Status::Ok || text.contains("invalid successor"), "{text}");
    }
}
