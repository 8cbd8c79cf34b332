//! The data of one task in a structure: written, checked and dropped in small steps.

use crate::draw::{Draw, Ranks};
use honeycomb_client::{Client, Error, File, Kv, Queue};
use honeycomb_types::JobId;
use honeycomb_types::limits::KV_BATCH_BYTES_MAX;
use honeycomb_wire::Status;
use std::collections::VecDeque;
use std::time::Duration;

/// Kinds of structures for a task's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holding {
    /// A file: grows by appends, and is dropped as a whole.
    File,
    /// A queue: grows by puts, shrinks by gets.
    Queue,
    /// A key-value store with Zipf-distributed keys, some of which are overwritten often. Shrinks by deletes.
    Kv,
}

impl Holding {
    /// All kinds.
    pub const ALL: [Holding; 3] = [Holding::File, Holding::Queue, Holding::Kv];

    /// The name in the glossary.
    pub fn name(self) -> &'static str {
        match self {
            Holding::File => "file",
            Holding::Queue => "queue",
            Holding::Kv => "kv",
        }
    }
}

/// Sizes of writes.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// Bytes of one append, and of the items of one put together.
    pub piece: usize,
    /// Bytes of a store's values.
    pub value: usize,
    /// Initial number of blocks of a store.
    pub kv_blocks: u32,
    /// Skew of the Zipf distribution of keys.
    pub skew: f64,
}

/// Items of one put.
const BATCH: usize = 4;
/// Minimum bytes of a piece, so that even a small task has several pieces.
const PIECE_MIN: usize = 64;
/// Minimum number of pieces of a task.
const PIECES: u64 = 16;
/// Bytes of a key.
const KEY: usize = 16;
/// Number of keys to draw from, for each key that the task will hold. With this number, every third or fourth
/// drawn key is new.
const KEYS_EACH: u64 = 8;
/// One of this many appends is read and compared.
const LOOK_AGAIN: u64 = 16;
/// How long a get from a queue may wait for an item that was put.
const PATIENCE: Duration = Duration::from_secs(10);

enum Kept {
    File { file: File, pieces: u64 },
    Queue { queue: Queue, put: u64, got: u64, items: VecDeque<usize> },
    Kv(Box<Store>),
}

/// A store and its expected contents.
struct Store {
    kv: Kv,
    zipf: Ranks,
    draw: Draw,
    /// Number of writes of each rank; 0 if it does not exist.
    written: Vec<u32>,
    /// Existing ranks in the order of their insertion.
    there: VecDeque<u32>,
    value: usize,
}

/// A structure with a task's data.
pub struct Held {
    kept: Kept,
    noise: Vec<u8>,
    piece: usize,
    /// Present bytes: written, acknowledged, and neither taken nor deleted.
    pub bytes: u64,
    /// Total bytes written.
    pub written: u64,
    /// Number of requests so far.
    pub requests: u64,
}

fn wrong(what: String) -> Error {
    Error::new(Status::Internal, what)
}

/// Self-describing bytes: the number, then noise derived from it.
fn content(noise: &[u8], number: u64, length: usize) -> Vec<u8> {
    let at = (number as usize).wrapping_mul(61) % (noise.len() - length + 1);
    let mut bytes = noise[at..at + length].to_vec();
    let head = number.to_le_bytes();
    let head = &head[..head.len().min(length)];
    bytes[..head.len()].copy_from_slice(head);
    bytes
}

fn key_of(rank: u32) -> [u8; KEY] {
    let mut key = *b"key-000000000000";
    let mut rest = rank as u64;
    for digit in key[4..].iter_mut().rev() {
        *digit = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    key
}

impl Held {
    /// Creates the structure under an existing prefix. `most` is its maximum size in bytes.
    pub fn create(
        client: &Client,
        job: JobId,
        path: &str,
        holding: Holding,
        sizes: Sizes,
        most: u64,
        seed: u64,
    ) -> Result<Held, Error> {
        let piece = sizes.piece.min((most / PIECES) as usize).max(PIECE_MIN);
        let mut draw = Draw::seeded(seed);
        let (kept, piece) = match holding {
            Holding::File => {
                let file = client.create_file(job, path, 1, true)?;
                let piece = piece.min(file.append_limit());
                (Kept::File { file, pieces: 0 }, piece)
            }
            Holding::Queue => {
                let queue = client.create_queue(job, path, 0, 0, true)?;
                let piece = piece.min(queue.item_limit() * BATCH);
                (Kept::Queue { queue, put: 0, got: 0, items: VecDeque::new() }, piece)
            }
            Holding::Kv => {
                let kv = client.create_kv(job, path, sizes.kv_blocks, true)?;
                let value = sizes.value.min(kv.plain_limit()).max(8);
                let keys = (most / (KEY + value) as u64 + 1) * KEYS_EACH;
                let written = vec![0; keys as usize];
                let zipf = Ranks::new(keys, sizes.skew);
                let draw = Draw::seeded(seed ^ 1);
                let store = Store { kv, zipf, draw, written, there: VecDeque::new(), value };
                (Kept::Kv(Box::new(store)), piece)
            }
        };
        let length = 4096 + piece.max(sizes.value);
        let noise = (0..length).map(|_| draw.below(256) as u8).collect();
        Ok(Held { kept, noise, piece, bytes: 0, written: 0, requests: 0 })
    }

    /// One step of growing, to at most `target` bytes; false when there is nothing left to do.
    pub fn grow(&mut self, target: u64) -> Result<bool, Error> {
        if self.bytes + self.piece as u64 > target {
            return Ok(false);
        }
        self.requests += 1;
        let Held { noise, piece, requests, .. } = self;
        let (new, written) = match &mut self.kept {
            Kept::File { file, pieces } => {
                let again = append(file, noise, *pieces, *piece)?;
                *pieces += 1;
                *requests += again;
                (*piece, *piece)
            }
            Kept::Queue { queue, put, items, .. } => {
                let length = (*piece / BATCH).max(1);
                let batch: Vec<Vec<u8>> =
                    (0..BATCH as u64).map(|i| content(noise, *put + i, length)).collect();
                let refs: Vec<&[u8]> = batch.iter().map(Vec::as_slice).collect();
                queue.put_many(&refs, Duration::ZERO).map_err(|(_, e)| e)?;
                *put += BATCH as u64;
                items.extend([length; BATCH]);
                (length * BATCH, length * BATCH)
            }
            Kept::Kv(store) => store.grow(noise, *piece)?,
        };
        self.bytes += new as u64;
        self.written += written as u64;
        Ok(true)
    }

    /// One step of shrinking, to at least `target` bytes; false when there is nothing left to do.
    pub fn shrink(&mut self, target: u64) -> Result<bool, Error> {
        if self.bytes <= target {
            return Ok(false);
        }
        let gone = match &mut self.kept {
            // The data of a file is freed with the file.
            Kept::File { .. } => return Ok(false),
            Kept::Queue { queue, got, items, .. } => take(queue, &self.noise, got, items)?,
            Kept::Kv(store) => store.shrink(&self.noise)?,
        };
        self.requests += 1;
        self.bytes -= gone as u64;
        Ok(true)
    }
}

/// Appends a piece, and sometimes reads an earlier one; answers the number of additional requests.
fn append(file: &File, noise: &[u8], number: u64, piece: usize) -> Result<u64, Error> {
    let offset = file.append(&content(noise, number, piece))?;
    if offset != number * piece as u64 {
        let text =
            format!("piece {number} of {piece} bytes is at {offset} of a file with one writer");
        return Err(wrong(text));
    }
    if !number.is_multiple_of(LOOK_AGAIN) {
        return Ok(0);
    }
    let earlier = number / 2;
    let mut buffer = vec![0; piece];
    let read = file.read_into(earlier * piece as u64, &mut buffer)?;
    if read != piece || buffer != content(noise, earlier, piece) {
        return Err(wrong(format!("piece {earlier} of a file differs from the written data")));
    }
    Ok(1)
}

/// Takes items from the front; answers their bytes.
fn take(
    queue: &Queue,
    noise: &[u8],
    got: &mut u64,
    items: &mut VecDeque<usize>,
) -> Result<usize, Error> {
    let mut gone = 0;
    let came = queue.get_many(BATCH.min(items.len()), PATIENCE)?;
    if came.is_empty() {
        return Err(wrong(format!("a get from a queue with {} items answered none", items.len())));
    }
    for item in came {
        let length = items.pop_front().unwrap_or(0);
        if item != content(noise, *got, length) {
            return Err(wrong(format!("item {got} of a queue differs from the item put")));
        }
        *got += 1;
        gone += length;
    }
    Ok(gone)
}

impl Store {
    /// Number of entries in one request.
    fn batch(&self, piece: usize) -> usize {
        let most = KV_BATCH_BYTES_MAX / (KEY + self.value + 16);
        (piece / (KEY + self.value)).clamp(1, most.max(1))
    }

    /// The value of a rank after this many writes.
    fn value(&self, noise: &[u8], rank: u32, times: u32) -> Vec<u8> {
        content(noise, (rank as u64) << 32 | times as u64, self.value)
    }

    /// Puts some entries and reads one of them; answers the additional bytes and the bytes written.
    fn grow(&mut self, noise: &[u8], piece: usize) -> Result<(usize, usize), Error> {
        let count = self.batch(piece);
        let mut entries = Vec::with_capacity(count);
        let mut new = 0;
        for _ in 0..count {
            let rank = self.draw.zipf(&self.zipf) as u32;
            let times = &mut self.written[rank as usize];
            if *times == 0 {
                self.there.push_back(rank);
                new += 1;
            }
            *times += 1;
            let times = *times;
            entries.push((rank, key_of(rank), self.value(noise, rank, times)));
        }
        let refs: Vec<(&[u8], &[u8])> =
            entries.iter().map(|(_, key, value)| (&key[..], &value[..])).collect();
        for result in self.kv.multi_put(&refs) {
            result?;
        }
        self.look(noise, entries[0].0)?;
        let each = KEY + self.value;
        Ok((new * each, count * each))
    }

    fn look(&self, noise: &[u8], rank: u32) -> Result<(), Error> {
        let mut value = Vec::new();
        let times = self.written[rank as usize];
        let there = self.kv.get(&key_of(rank), &mut value)?;
        if there && value == self.value(noise, rank, times) {
            return Ok(());
        }
        let what = if there { "another value" } else { "no value" };
        Err(wrong(format!("a get of a key that was written {times} times answered {what}")))
    }

    /// Deletes the oldest entries; answers their bytes.
    fn shrink(&mut self, noise: &[u8]) -> Result<usize, Error> {
        if let Some(rank) = self.there.front() {
            self.look(noise, *rank)?;
        }
        let count = self.there.len().min(BATCH * 4);
        let keys: Vec<[u8; KEY]> = self
            .there
            .drain(..count)
            .map(|rank| {
                self.written[rank as usize] = 0;
                key_of(rank)
            })
            .collect();
        let refs: Vec<&[u8]> = keys.iter().map(|key| &key[..]).collect();
        for was_there in self.kv.multi_delete(&refs) {
            if !was_there? {
                return Err(wrong("a delete did not find a key that was written".into()));
            }
        }
        Ok(count * (KEY + self.value))
    }
}
