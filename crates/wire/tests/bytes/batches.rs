//! Compares the vectors of operations with many keys with the results of this crate.

use crate::common::{bytes, list, number, status, text};
use honeycomb_wire::batch::{
    BatchOp, BatchResult, ReadManyArgs, batch_ops, keys, put_batch, put_keys, put_range,
    put_result, ranges, results,
};
use honeycomb_wire::stored::{self, Function, Item, Stored, TopOperand, function_and_key};
use honeycomb_wire::{Field, Op};
use serde_json::Value;

/// Numbers of functions as the second implementation names them.
fn function(name: &str) -> Function {
    match name {
        "sum i64" => Function::SumI64,
        "count" => Function::Count,
        other => panic!("no operation of the vectors uses {other}"),
    }
}

/// The parts of one operation of a batch, from a vector.
struct Told {
    kind: String,
    key: Vec<u8>,
    value: Vec<u8>,
    expected: Option<Vec<u8>>,
    function: Option<Function>,
}

impl Told {
    fn of(case: &Value) -> Told {
        let field = |name: &str| case.get(name).filter(|value| !value.is_null());
        let value = ["value", "new", "operand"].into_iter().find_map(field);
        Told {
            kind: text(&case["kind"]).to_owned(),
            key: bytes(&case["key"]),
            value: value.map(bytes).unwrap_or_default(),
            expected: field("expected").map(bytes),
            function: field("function").map(|name| function(text(name))),
        }
    }

    fn op(&self) -> BatchOp<'_> {
        let (key, value) = (&self.key[..], &self.value[..]);
        match &self.kind[..] {
            "get" => BatchOp::Get { key },
            "put" => BatchOp::Put { key, value },
            "set" => BatchOp::Set { key, value },
            "insert" => BatchOp::Insert { key, value },
            "delete" => BatchOp::Delete { key },
            "swap" => BatchOp::Swap { key, expected: self.expected.as_deref(), new: value },
            "accumulate" => {
                BatchOp::Accumulate { key, function: self.function.unwrap(), operand: value }
            }
            other => panic!("no operation {other}"),
        }
    }
}

/// A request of one of these operations.
pub fn check_request(op: Op, sample: &Value, args: &[u8], payload: &[u8]) {
    let at = format!("{} {}", op.name(), sample["name"]);
    let field = |name: &str| &sample["fields"][name];
    match op {
        Op::FileReadMany => {
            let told = list(field("ranges")).iter().map(list);
            let told = told.map(|r| (number(&r[0]), number(&r[1]) as u32)).collect();
            let many = ReadManyArgs { bytes: number(field("bytes")) as u32, ranges: told };
            let mut out = Vec::new();
            many.put(&mut out);
            assert_eq!((ReadManyArgs::decode(args), &out[..]), (Ok(many), args), "{at}");
        }
        Op::KvMultiGet => {
            assert_eq!(u32::decode(args), Ok(number(field("bytes")) as u32), "{at}");
            let told: Vec<Vec<u8>> = list(field("keys")).iter().map(bytes).collect();
            let told: Vec<&[u8]> = told.iter().map(|key| &key[..]).collect();
            assert_eq!(keys(payload).as_ref(), Ok(&told), "{at}");
            assert_eq!(put_keys(&told), payload, "{at}");
        }
        Op::KvBatch => {
            assert_eq!(bool::decode(args), Ok(number(field("atomic")) == 1), "{at}");
            let told: Vec<Told> = list(field("ops")).iter().map(Told::of).collect();
            let told: Vec<BatchOp<'_>> = told.iter().map(Told::op).collect();
            assert_eq!(batch_ops(payload).as_ref(), Ok(&told), "{at}");
            assert_eq!(put_batch(&told), payload, "{at}");
        }
        Op::KvAccumulate => {
            let (function, key) = function_and_key(args).unwrap();
            assert_eq!(function as u64, number(field("function")), "{at}");
            assert_eq!(key, bytes(field("key")), "{at}");
            assert_eq!(stored::accumulate_args(function, key), args, "{at}");
            match function {
                Function::Count => assert!(payload.is_empty(), "{at}"),
                Function::Append => {}
                Function::Top => {
                    let operand = TopOperand::decode(payload).unwrap();
                    assert_eq!(operand.encode(), payload, "{at}");
                }
                _ => assert_eq!(payload.len(), 8, "{at}"),
            }
        }
        other => panic!("{} carries one key", other.name()),
    }
}

/// A reply to one of them.
pub fn check_reply(op: Op, sample: &Value, value: u64, args: &[u8], payload: &[u8]) {
    let at = format!("{} {}", op.name(), sample["name"]);
    let mut out = Vec::new();
    if op == Op::FileReadMany {
        let told: Vec<Vec<u8>> = list(&sample["fields"]["ranges"]).iter().map(bytes).collect();
        let read = ranges(payload, value as usize).unwrap();
        assert!(read.iter().eq(told.iter()), "{at}");
        read.iter().for_each(|range| put_range(&mut out, range));
    } else {
        let told = list(&sample["fields"]["results"]);
        let refused = op == Op::KvBatch && args == [0];
        assert!(refused || told.len() as u64 == value, "{at}");
        let read = results(payload, told.len()).unwrap();
        for (result, told) in read.iter().zip(told) {
            let shown = (status(told), number(&told["value"]), bytes(&told["bytes"]));
            assert_eq!((result.status, result.value, result.bytes.to_vec()), shown, "{at}");
            let BatchResult { status, value, bytes } = *result;
            put_result(&mut out, &BatchResult { status, value, bytes });
        }
    }
    assert_eq!(out, payload, "{at}");
    assert_eq!(args.is_empty(), op != Op::KvBatch, "{at}");
}

/// A stored value and its form.
pub fn check_stored(case: &Value) {
    let value = bytes(&case["value"]);
    let shown = &case["shown"];
    let (kind, written) = match Stored::of(&value) {
        Stored::Integer(n) => {
            assert_eq!(n.to_string(), text(shown), "{case}");
            ("integer", stored::integer(n).to_vec())
        }
        Stored::Float(n) => {
            assert_eq!(n.to_bits(), number(shown), "{case}");
            ("float", stored::float(n).to_vec())
        }
        Stored::Top(items) => {
            let told: Vec<(u64, Vec<u8>)> =
                list(shown).iter().map(|i| (number(&i[0]), bytes(&i[1]))).collect();
            let read = items.iter().map(|Item { score, bytes }| (score.to_bits(), bytes.to_vec()));
            assert!(read.eq(told), "{case}");
            ("top", stored::top(&items))
        }
        Stored::Plain => ("plain", value.clone()),
    };
    assert_eq!((kind, written), (text(&case["kind"]), value), "{case}");
}
