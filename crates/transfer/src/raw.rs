//! One file as one plain object, and one plain object as a file.

use crate::load::{Load, Loaded, hidden};
use crate::{Result, of_flush};
use honeycomb_client::{Any, Error, File, JobClient};
use honeycomb_tiers::{Access, Place, RawReader, RawWriter};
use honeycomb_types::Address;
use honeycomb_wire::Status;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Fails if the flush was stopped.
fn go_on(stop: &AtomicBool) -> Result {
    match stop.load(Relaxed) {
        true => Err(Error::new(Status::Internal, "the flush was stopped; nothing was written")),
        false => Ok(()),
    }
}

/// Writes the present bytes of a file to a place as one object, without later appends; returns their number.
/// `look` receives the number of written bytes and of all bytes. If `stop` becomes true before the object is
/// complete, the upload is aborted, no object is written, and the call fails.
pub fn flush(
    on: JobClient<'_>,
    address: &str,
    place: &Place,
    access: &Access,
    look: &dyn Fn(u64, u64),
    stop: &AtomicBool,
) -> Result<u64> {
    let file = match on.client.open_any(on.job, address)? {
        Any::File(file) => file,
        other => {
            let kind = match other {
                Any::Queue(_) => "a queue",
                Any::Kv(_) => "a key-value store",
                _ => "of a custom kind",
            };
            let text = format!(
                "cannot flush {address} as a plain object: it is {kind}, not a file; flush its \
                 prefix in the default format"
            );
            return Err(Error::new(Status::WrongKind, text));
        }
    };
    let length = file.size()?;
    let mut object = RawWriter::begin(place, access, length).map_err(of_flush)?;
    let mut done = 0;
    while done < length {
        let want = (length - done).min(object.part() as u64) as usize;
        object.append(read(&file, done, want, stop)?).map_err(of_flush)?;
        done += want as u64;
        look(done, length);
    }
    go_on(stop)?;
    object.finish().map_err(of_flush)?;
    Ok(length)
}

fn read(file: &File, offset: u64, length: usize, stop: &AtomicBool) -> Result<Vec<u8>> {
    let mut bytes = vec![0; length];
    let mut there = 0;
    while there < length {
        go_on(stop)?;
        match file.read_into(offset + there as u64, &mut bytes[there..])? {
            0 => {
                let text = format!(
                    "cannot read the whole file: it ends at byte {}, which is less than its size \
                     before",
                    offset + there as u64
                );
                return Err(Error::new(Status::Internal, text));
            }
            n => there += n,
        }
    }
    Ok(bytes)
}

/// Loads any object as a file in the new prefix `load.path`.
pub fn load(
    on: JobClient<'_>,
    place: &Place,
    access: &Access,
    (load, address): (&Load, &str),
    look: &(dyn Fn(u64, u64) + Sync),
) -> Result<Loaded> {
    let mut object = RawReader::open(place, access).map_err(of_flush)?;
    let bytes = object.size();
    hidden(on, load, || {
        let file = on.client.create_file(on.job, address, 1, false)?;
        let mut done = 0;
        while let Some(part) = object.next_part().map_err(of_flush)? {
            file.write_all(&part)?;
            done += part.len() as u64;
            look(done, bytes);
        }
        match file.size()? {
            there if there == bytes => Ok(Loaded { structures: 1, bytes }),
            there => {
                let text = format!(
                    "{address} has {there} bytes after the load, but {place} has {bytes}; load it \
                     again"
                );
                Err(Error::new(Status::Internal, text))
            }
        }
    })
}

/// The prefix of a structure's address.
pub fn prefix_of(address: &str) -> Result<String> {
    Ok(Address::parse(address)?.path.trim_start_matches('/').to_owned())
}
