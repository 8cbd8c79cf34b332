//! Records keep their bytes, and a journal is read up to its end but not past a damaged record.
#![allow(clippy::unwrap_used)]

use super::*;
use honeycomb_types::Kind;

const TAG: &str = "00ab.0.0007";
const FIRST: BlockAt =
    BlockAt { block: honeycomb_types::BlockId(3), epoch: honeycomb_types::Epoch(9) };
const SECOND: BlockAt =
    BlockAt { block: honeycomb_types::BlockId(4), epoch: honeycomb_types::Epoch(11) };

/// A journal written as a store would have it.
struct WrittenObject(std::path::PathBuf);

impl Drop for WrittenObject {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

impl WrittenObject {
    fn new(name: &str) -> WrittenObject {
        let path = std::env::temp_dir().join(format!("hc-journal-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        let (job, address) = ("job".into(), "t".into());
        let owner = JournalOwner { tag: TAG.into(), job, address };
        let written = WrittenObject(path);
        written.put(FLUSH_JOURNAL, &encode(owner));
        written
    }

    fn put(&self, name: &str, bytes: &[u8]) {
        std::fs::write(self.0.join(name), bytes).unwrap();
    }

    fn head(&self, structure: u64, name: &str, at: BlockAt) {
        let (block, epoch) = (at.block.0, at.epoch.0);
        let (name, kind) = (name.into(), Kind::File.name().into());
        let head = JournalStructure { structure, name, kind, block, epoch };
        self.put(&head_of(TAG, structure), &encode(head));
    }

    fn record(&self, at: BlockAt, number: u64, start: u64, ends: RecordEnds, bytes: &[u8]) {
        let record = Record { number, start, ends };
        let object = [&record.header(bytes)[..], bytes].concat();
        self.put(&Record::name(TAG, 1, at, number), &object);
    }

    fn open(&self) -> Result<Flushed, FlushError> {
        Flushed::open(&self.0)
    }
}

#[test]
fn any_changed_or_missing_byte_of_a_record_is_seen() {
    let record = Record { number: 3, start: 70, ends: RecordEnds::Continues(SECOND) };
    let good = [&record.header(b"bytes")[..], b"bytes"].concat();
    assert_eq!(Record::decode(&good), Ok((record, &b"bytes"[..])));
    for at in 0..good.len() {
        let mut bad = good.clone();
        bad[at] ^= 1;
        assert!(Record::decode(&bad).is_err(), "byte {at} was changed");
        assert!(Record::decode(&good[..at]).is_err(), "cut at {at}");
    }
}

#[test]
fn a_structure_is_followed_from_block_to_block() {
    let journal = WrittenObject::new("chain");
    journal.head(1, "log", FIRST);
    journal.record(FIRST, 0, 0, RecordEnds::Open, b"one ");
    journal.record(FIRST, 1, 4, RecordEnds::Open, b"two ");
    journal.record(FIRST, 2, 8, RecordEnds::Continues(SECOND), b"");
    // A record of an earlier journal under another tag is ignored.
    journal.put("00aa.0.0001-0000000000000001.journal", b"of an earlier one");
    let flushed = journal.open().unwrap();
    assert!(flushed.is_journal() && !flushed.manifest().structures[0].sealed);
    assert_eq!(flushed.file("log").unwrap(), b"one two ");
    journal.record(SECOND, 0, 0, RecordEnds::Open, b"three");
    journal.record(SECOND, 1, 5, RecordEnds::Final, b"");
    let flushed = journal.open().unwrap();
    assert!(flushed.manifest().structures[0].sealed);
    assert_eq!(flushed.file("log").unwrap(), b"one two three");
    let starts: Vec<u64> = flushed.manifest().parts().map(|part| part.start).collect();
    assert_eq!(starts, [0, 4, 8]);

    // A copy is a flush.
    let copy = journal.0.join("copy");
    flushed.copy_to(&copy).unwrap();
    let copied = Flushed::open(&copy).unwrap();
    copied.check().unwrap();
    assert!(!copied.is_journal());
    assert_eq!(copied.file("log").unwrap(), b"one two three");

    // After the deletion only other owners' objects remain.
    flushed.delete(&Access::none()).unwrap();
    assert!(matches!(journal.open(), Err(FlushError::NoManifest { .. })));
}

#[test]
fn of_two_of_one_name_the_later_one_is_there() {
    let journal = WrittenObject::new("twice");
    journal.head(1, "log", FIRST);
    journal.record(FIRST, 0, 0, RecordEnds::Open, b"removed since");
    journal.head(2, "log", SECOND);
    let flushed = journal.open().unwrap();
    assert_eq!(flushed.manifest().structures.len(), 1);
    assert_eq!(flushed.file("log").unwrap(), b"");
}

#[test]
fn a_missing_or_damaged_record_is_told_and_not_skipped() {
    let journal = WrittenObject::new("gap");
    journal.head(1, "log", FIRST);
    for (number, text) in [b"aaaa", b"bbbb", b"cccc"].into_iter().enumerate() {
        journal.record(FIRST, number as u64, number as u64 * 4, RecordEnds::Open, text);
    }
    let name = |number| Record::name(TAG, 1, FIRST, number);
    let second = journal.0.join(name(1));
    let there = std::fs::read(&second).unwrap();
    std::fs::remove_file(&second).unwrap();
    let why = journal.open().unwrap_err();
    assert!(
        matches!(&why, FlushError::Damaged { object, .. } if object.ends_with(&name(1))),
        "{why}"
    );
    // Shorter than before: its successor no longer follows it.
    std::fs::write(&second, &there[..there.len() - 1]).unwrap();
    assert!(matches!(journal.open(), Err(FlushError::Damaged { .. })));
    let mut changed = there.clone();
    changed[HEADER] ^= 1;
    std::fs::write(&second, &changed).unwrap();
    let flushed = journal.open().unwrap();
    assert!(matches!(flushed.file("log"), Err(FlushError::Damaged { .. })));
    std::fs::write(&second, &there).unwrap();
    assert_eq!(journal.open().unwrap().file("log").unwrap(), b"aaaabbbbcccc");
}
