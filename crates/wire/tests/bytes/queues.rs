//! The hand-written layouts of queues and notices, compared with their vectors.

use crate::common::{bytes, list, number, text, vectors};
use honeycomb_types::BlockAt;
use honeycomb_wire::data::MovedArgs;
use honeycomb_wire::extents::{ExtentRef, put_extents};
use honeycomb_wire::notice::{Change, Notice};
use honeycomb_wire::queue::{
    AckAction, AckArgs, Counts, GetArgs, GetExtentsArgs, Items, LargeItem, large_items, lengths,
    put_large_item, put_lengths,
};
use honeycomb_wire::{Field, Op, Status};
use serde_json::Value;
use std::collections::BTreeSet;

pub fn check_request(op: Op, fields: &Value, args: &[u8], payload: &[u8], at: &str) {
    let narrow = |name: &str| number(&fields[name]) as u32;
    let mut out = Vec::new();
    match op {
        Op::QueuePut => {
            let items: Vec<Vec<u8>> = list(&fields["items"]).iter().map(bytes).collect();
            let items: Vec<&[u8]> = items.iter().map(|item| &item[..]).collect();
            put_lengths(&items, &mut out);
            assert_eq!(items.concat(), payload, "{at}");
            let told: Vec<u32> = items.iter().map(|item| item.len() as u32).collect();
            assert_eq!(lengths(args, payload.len()), Ok(told), "{at}");
        }
        Op::QueueGet => {
            let (items, bytes) = (narrow("items"), narrow("bytes"));
            let (reserve_ms, stay) = (narrow("reserve_ms"), narrow("stay") == 1);
            let get = GetArgs { items, bytes, reserve_ms, stay };
            get.put(&mut out);
            assert_eq!(GetArgs::decode(args), Ok(get), "{at}");
        }
        Op::QueuePeek => {
            let (items, bytes) = (narrow("items"), narrow("bytes"));
            out = [items.to_le_bytes(), bytes.to_le_bytes()].concat();
            let peek = GetArgs { items, bytes, reserve_ms: 0, stay: false };
            assert_eq!(GetArgs::decode_peek(args), Ok(peek), "{at}");
        }
        Op::QueueAck => {
            let action = match narrow("action") {
                0 => AckAction::Done,
                1 => AckAction::GiveBack,
                _ => AckAction::Extend,
            };
            let pair = |pair: &Value| (number(&pair[0]), number(&pair[1]) as u32);
            let items = list(&fields["items"]).iter().map(pair).collect();
            let ack = AckArgs { action, timeout_ms: narrow("timeout_ms"), items };
            out = ack.encode();
            assert_eq!(AckArgs::decode(args), Ok(ack), "{at}");
        }
        Op::QueueGetExtents => {
            let get =
                GetExtentsArgs { reserve_ms: narrow("reserve_ms"), stay: narrow("stay") == 1 };
            out = get.encode();
            assert_eq!(GetExtentsArgs::decode(args), Ok(get), "{at}");
        }
        Op::QueueLists => out = number(&fields["from"]).encode(),
        _ => out.push(narrow("tail") as u8),
    }
    assert_eq!(out, args, "{at}");
}

/// The extents of a sample.
pub fn extents_of(shown: &Value) -> Vec<ExtentRef> {
    let extents = list(shown).iter().map(|one| ExtentRef {
        at: BlockAt::of(number(&one[0]), number(&one[1])),
        id: number(&one[2]),
        len: number(&one[3]) as u32,
    });
    extents.collect()
}

pub fn check_reply(op: Op, sample: &Value, args: &[u8], payload: &[u8], at: &str) {
    let (fields, value) = (&sample["fields"], number(&sample["value"]));
    let wide = |name: &str| number(&fields[name]);
    match op {
        Op::QueueGet | Op::QueuePeek => {
            let items: Vec<Vec<u8>> = list(&fields["items"]).iter().map(bytes).collect();
            assert_eq!((items.concat(), items.len() as u64), (payload.to_vec(), value), "{at}");
            let lengths = items.iter().map(|item| item.len() as u32).collect();
            let (first, deliveries) = (wide("first"), wide("deliveries") as u32);
            let told = Items { first, deliveries, lengths };
            assert_eq!(told.encode(), args, "{at}");
            assert_eq!(Items::decode(args, payload.len()), Ok(told), "{at}");
        }
        Op::QueueLength => {
            let counts = Counts {
                taken: wide("taken"),
                bytes_put: wide("bytes_put"),
                bytes_taken: wide("bytes_taken"),
                reserved: wide("reserved"),
                closed: wide("closed") == 1,
            };
            assert_eq!(counts.encode(), args, "{at}");
            assert_eq!(Counts::decode(args), Ok(counts), "{at}");
        }
        Op::QueueGetExtents => {
            let item = LargeItem { number: wide("number"), deliveries: wide("deliveries") as u32 };
            assert_eq!(item.encode(), args, "{at}");
            assert_eq!(LargeItem::decode(args), Ok(item), "{at}");
            assert_eq!(put_extents(&extents_of(&fields["extents"])), payload, "{at}");
        }
        Op::QueueLists => {
            let pair = |pair: &Value| (number(&pair[0]), put_extents(&extents_of(&pair[1])));
            let items: Vec<(u64, Vec<u8>)> = list(&fields["items"]).iter().map(pair).collect();
            let mut page = Vec::new();
            items.iter().for_each(|(number, list)| put_large_item(*number, list, &mut page));
            assert_eq!(page, payload, "{at}");
            let told = items.iter().map(|(number, list)| (*number, &list[..]));
            assert_eq!(large_items(payload), Ok(told.collect()), "{at}");
        }
        _ => {
            let held: Vec<u8> =
                list(&fields["held"]).iter().map(|held| number(held) as u8).collect();
            assert_eq!(args, held, "{at}");
            assert_eq!(held.iter().map(|held| *held as u64).sum::<u64>(), value, "{at}");
        }
    }
}

fn notice_of(told: &Value) -> Notice {
    let wide = |name: &str| number(&told[name]);
    let key = || bytes(&told["key"]).into_boxed_slice();
    Notice::Changed(match text(&told["what"]) {
        "append" => Change::Append { offset: wide("offset"), length: wide("length") },
        "seal" => Change::Seal { length: wide("length") },
        "data" => Change::Data { items: wide("items") },
        "space" => Change::Space { items: wide("items") },
        "close" => Change::Close,
        "put" => Change::Put { key: key() },
        "delete" => Change::Delete { key: key() },
        "gap" => return Notice::Gap(wide("missed")),
        "handover" => {
            let entry = &told["entry"];
            let field = |name: &str| number(&entry[name]);
            let entry = honeycomb_wire::messages::MapEntry {
                start: field("start"),
                end: field("end"),
                block: field("block"),
                epoch: field("epoch"),
                address: text(&entry["address"]).into(),
            };
            let to = MovedArgs { version: wide("version"), entry };
            return Notice::Handover { length: wide("length"), to };
        }
        "ended" => {
            let named = |status: &Status| status.name() == text(&told["status"]);
            let status = Status::ALL.into_iter().find(named).unwrap();
            return Notice::Ended(status, text(&told["message"]).into());
        }
        other => panic!("no notice is called {other}"),
    })
}

#[test]
fn notices_say_what_changed() {
    let file = vectors("messages");
    let mut codes = BTreeSet::new();
    for case in list(&file["notices"]) {
        let (told, args) = (&case["fields"], bytes(&case["args"]));
        let expected = (number(&told["subscription"]) as u32, notice_of(told));
        assert_eq!(expected.1.encode(expected.0), args, "{}", case["name"]);
        assert_eq!(Notice::decode(&args), Ok(expected), "{}", case["name"]);
        codes.insert(number(&told["code"]));
    }
    assert_eq!(Vec::from_iter(codes), [1, 2, 3, 4, 5, 6, 7, 64, 65, 66]);
    // Whole frames of notices are not replies to a request.
    let frames = vectors("frames");
    let notices = list(&frames["whole"]).iter().filter(|case| case["fields"]["status"] == "Notice");
    let numbers: Vec<u64> = notices.map(|case| number(&case["fields"]["request"])).collect();
    assert_eq!(numbers, vec![0; list(&file["notices"]).len()]);
}
