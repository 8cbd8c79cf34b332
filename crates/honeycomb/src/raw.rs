//! One file as one plain object, and one plain object as a file.

use crate::failure::{CommandResult, Failure};
use crate::flushed::failure;
use crate::loading::{Load, Loaded, hidden};
use honeycomb_client::{Any, Client, File};
use honeycomb_tiers::{Access, Place, RawReader, RawWriter};
use honeycomb_types::{Address, JobId};
use honeycomb_wire::Status;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Whether a signal that ends the program has arrived: an unfinished upload is aborted first.
struct Interrupted(Arc<AtomicBool>);

impl Interrupted {
    fn heard() -> CommandResult<Interrupted> {
        let heard = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            signal_hook::flag::register(signal, heard.clone())
                .map_err(|e| Failure::io("cannot install signal handlers", &e))?;
        }
        Ok(Interrupted(heard))
    }

    fn check(&self) -> CommandResult {
        match self.0.load(Relaxed) {
            true => Err(Failure::from("interrupted by a signal; nothing was written".to_owned())),
            false => Ok(()),
        }
    }
}

/// Writes a file to a place as one object: its present bytes, without later appends. It calls `look` with the
/// written bytes and all bytes.
pub fn flush(
    client: &Client,
    job: JobId,
    address: &str,
    place: &Place,
    access: &Access,
    look: &dyn Fn(u64, u64),
) -> CommandResult<u64> {
    let file = match client.open_any(job, address)? {
        Any::File(file) => file,
        other => {
            let kind = match other {
                Any::Queue(_) => "a queue",
                Any::Kv(_) => "a key-value store",
                _ => "of a custom kind",
            };
            let text = format!(
                "cannot flush {address} as a plain object: it is {kind}, not a file; flush its \
                    prefix \
                 in the default format"
            );
            return Err(Failure::new(Status::WrongKind, text));
        }
    };
    let interrupted = Interrupted::heard()?;
    let length = file.size()?;
    let mut object = RawWriter::begin(place, access, length).map_err(failure)?;
    let mut done = 0;
    while done < length {
        let want = (length - done).min(object.part() as u64) as usize;
        object.append(read(&file, done, want, &interrupted)?).map_err(failure)?;
        done += want as u64;
        look(done, length);
    }
    interrupted.check()?;
    object.finish().map_err(failure)?;
    Ok(length)
}

fn read(
    file: &File,
    offset: u64,
    length: usize,
    interrupted: &Interrupted,
) -> CommandResult<Vec<u8>> {
    let mut bytes = vec![0; length];
    let mut there = 0;
    while there < length {
        interrupted.check()?;
        match file.read_into(offset + there as u64, &mut bytes[there..])? {
            0 => {
                let text = format!(
                    "cannot read the whole file: it ends at byte {}, which is less than its size \
                     before",
                    offset + there as u64
                );
                return Err(Failure::new(Status::Internal, text));
            }
            n => there += n,
        }
    }
    Ok(bytes)
}

/// Loads any object as a file in the new prefix `load.path`.
pub fn load(
    client: &Client,
    job: JobId,
    place: &Place,
    access: &Access,
    (load, address): (&Load, &str),
    look: &(dyn Fn(u64, u64) + Sync),
) -> CommandResult<Loaded> {
    let mut object = RawReader::open(place, access).map_err(failure)?;
    let bytes = object.size();
    hidden(client, job, load, || {
        let file = client.create_file(job, address, 1, false)?;
        let mut done = 0;
        while let Some(part) = object.next_part().map_err(failure)? {
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
                Err(Failure::new(Status::Internal, text))
            }
        }
    })
}

/// The prefix of a structure's address.
pub fn prefix_of(address: &str) -> CommandResult<String> {
    Ok(Address::parse(address)?.path.trim_start_matches('/').to_owned())
}
