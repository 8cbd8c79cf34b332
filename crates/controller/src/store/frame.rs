//! Frames of log and snapshot files, which detect all damage.
//!
//! A frame is one group of records: all changes of one round of the controller. It has a length, a type, a
//! version and a checksum over all of it. It also records how many bytes of its file were synced when it was
//! written. This distinguishes damage from a write that a crash interrupted (`read_file`).

use honeycomb_types::Time;
use xxhash_rust::xxh64::Xxh64;

/// Bytes before the body.
pub(crate) const HEADER: usize = 48;
const MAGIC: u32 = u32::from_le_bytes(*b"HCLG");
/// Version of the format. A file of a greater major version is refused by name.
pub(crate) const MAJOR: u8 = 1;
const MINOR: u8 = 0;

/// The type of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub(crate) enum FrameKind {
    /// The first frame of a file: term and number of the file.
    Head = 1,
    /// Records of one group.
    Group = 2,
    /// The last frame of a snapshot.
    End = 3,
}

/// A decoded frame.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Frame<'a> {
    pub(crate) kind: FrameKind,
    /// Number of the frame, counted over all files of a log.
    pub(crate) number: u64,
    /// Bytes of the file that were synced when the frame was written.
    pub(crate) synced: u64,
    /// The controller's clock.
    pub(crate) time: Time,
    pub(crate) body: &'a [u8],
}

/// The reason why a file cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Damage {
    /// The bytes at this offset were synced and have changed since.
    Spoilt { offset: u64 },
    /// The file is of a later version of this program.
    Newer { major: u8 },
}

fn checksum(file: u64, header: &[u8], body: &[u8]) -> u64 {
    // The file's number is the seed, so that a frame of another file is not valid in this one.
    let mut hash = Xxh64::new(file);
    hash.update(&header[..40]);
    hash.update(body);
    hash.digest()
}

/// Appends a frame of file number `file`.
pub(crate) fn put(out: &mut Vec<u8>, file: u64, frame: &Frame<'_>) {
    let at = out.len();
    out.extend_from_slice(&MAGIC.to_le_bytes());
    out.extend_from_slice(&(frame.kind as u16).to_le_bytes());
    out.extend_from_slice(&[MAJOR, MINOR]);
    let length = u32::try_from(frame.body.len()).expect("a group is far under 4 GiB");
    out.extend_from_slice(&length.to_le_bytes());
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(&frame.number.to_le_bytes());
    out.extend_from_slice(&frame.synced.to_le_bytes());
    out.extend_from_slice(&frame.time.0.to_le_bytes());
    let sum = checksum(file, &out[at..], frame.body);
    out.extend_from_slice(&sum.to_le_bytes());
    let header = out.len() - at;
    assert_eq!(header, HEADER, "INV-26: the header of a frame has {header} bytes");
    out.extend_from_slice(frame.body);
}

fn u32_at(b: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(b[at..at + 4].try_into().expect("four bytes"))
}

fn u64_at(b: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(b[at..at + 8].try_into().expect("eight bytes"))
}

/// The frame at the start of `data`, if it is valid.
fn parse(data: &[u8], file: u64) -> Option<Frame<'_>> {
    let header = data.get(..HEADER)?;
    if u32_at(header, 0) != MAGIC || header[6] != MAJOR {
        return None;
    }
    let body = data.get(HEADER..HEADER + u32_at(header, 8) as usize)?;
    if checksum(file, header, body) != u64_at(header, 40) {
        return None;
    }
    let kind = match u16::from_le_bytes([header[4], header[5]]) {
        1 => FrameKind::Head,
        2 => FrameKind::Group,
        3 => FrameKind::End,
        _ => return None,
    };
    let (number, synced) = (u64_at(header, 16), u64_at(header, 24));
    Some(Frame { kind, number, synced, time: Time(u64_at(header, 32)), body })
}

/// All frames of a file, and the number of their bytes. Remaining bytes are a write that a crash interrupted;
/// only the last file of a log may have them.
pub(crate) fn read_file(data: &[u8], file: u64) -> Result<(Vec<Frame<'_>>, u64), Damage> {
    // Checked before the checksum, because another version may have another checksum.
    if let Some(head) = data.get(..8)
        && u32_at(head, 0) == MAGIC
        && head[6] > MAJOR
    {
        return Err(Damage::Newer { major: head[6] });
    }
    let mut frames = Vec::new();
    let mut at = 0;
    while at < data.len() {
        match parse(&data[at..], file) {
            Some(frame) => {
                at += HEADER + frame.body.len();
                frames.push(frame);
            }
            None => break,
        }
    }
    let offset = at as u64;
    // A later frame that was written after these bytes were synced shows that they were damaged since.
    // Without such a frame, they may never have reached the disk.
    let later = (at + 1..data.len().saturating_sub(HEADER - 1))
        .filter(|&i| u32_at(data, i) == MAGIC)
        .filter_map(|i| parse(&data[i..], file));
    for frame in later {
        if frame.synced > offset {
            return Err(Damage::Spoilt { offset });
        }
    }
    Ok((frames, offset))
}
