//! The configuration of lower tiers: which lists are valid, and how tiers are opened.

use crate::server::DiskOptions;
use honeycomb_env::{Clock, Scratch, Shaped, Volume, diskfault};
use honeycomb_tiers::{ObjectVolume, TierWorker};
use std::error::Error;
use std::fmt;
use std::io;
use std::sync::Arc;

/// An invalid list of tiers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WrongTiers {
    /// A disk is listed after an object store.
    DiskBelowStore {
        /// The disk.
        disk: String,
        /// The object store.
        store: String,
    },
    /// A disk is in a bucket.
    DiskInBucket {
        /// The bucket.
        place: String,
        /// The configured class.
        class: &'static str,
    },
}

impl fmt::Display for WrongTiers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WrongTiers::DiskBelowStore { disk, store } => write!(
                f,
                "the disk at {disk} is listed after the object store at {store}; list disks first, \
                 because blocks in an object store accept no writes"
            ),
            WrongTiers::DiskInBucket { place, class } => {
                write!(
                    f,
                    "{place} is not a directory, so it is not of class {class}; write \
                     object:{place}"
                )
            }
        }
    }
}

impl Error for WrongTiers {}

/// Refuses invalid lists of tiers.
pub fn check(disks: &[DiskOptions]) -> Result<(), WrongTiers> {
    let mut store = None;
    for disk in disks {
        let place = disk.place.to_string();
        if disk.class.takes_final_only() {
            store = Some(place);
        } else if let Some(store) = store {
            return Err(WrongTiers::DiskBelowStore { disk: place, store });
        } else if disk.place.directory().is_none() {
            return Err(WrongTiers::DiskInBucket { place, class: disk.class.name() });
        }
    }
    Ok(())
}

/// The name of a tier for people.
pub(crate) fn named(disk: &DiskOptions) -> String {
    let what = if disk.class.takes_final_only() { "object store" } else { "disk" };
    format!("the {what} at {}", disk.place)
}

/// Opens a tier of so many bytes, for blocks of this size, of the server with this address in this
/// incarnation. An object store comes with a worker that the caller runs on a thread of its own.
pub(crate) fn open(
    disk: &DiskOptions,
    own: (&str, u64),
    size: (u64, u64),
    clock: Clock,
) -> io::Result<(Arc<dyn Volume>, Option<TierWorker>)> {
    let directory = disk.place.directory().filter(|_| !disk.class.takes_final_only());
    let Some(directory) = directory else {
        let opened = ObjectVolume::open(&disk.place, &disk.access, own, size);
        let (volume, worker) = opened.map_err(io::Error::other)?;
        let volume: Arc<dyn Volume> = match disk.shape {
            Some(shape) => Arc::new(Shaped::new(volume, shape, clock)),
            None => Arc::new(volume),
        };
        return Ok((volume, Some(worker)));
    };
    let volume = Scratch::open(directory, size.0).map_err(|e| {
        io::Error::new(e.kind(), format!("the disk at {}: {e}", directory.display()))
    })?;
    let volume: Arc<dyn Volume> = match disk.shape {
        Some(shape) => Arc::new(Shaped::new(volume, shape, clock)),
        None => Arc::new(volume),
    };
    Ok((diskfault::faulty(volume), None))
}
