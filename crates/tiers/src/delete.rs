//! Deletes a flush: the manifest first, so that the flush ceases to exist, then the objects that it
//! named.

use crate::access::Access;
use crate::journal;
use crate::read::{Bucket, Flushed};
use crate::{FlushError, reason};
use futures_util::stream::{self, StreamExt};
use honeycomb_types::FLUSH_MANIFEST;
use object_store::{Error, ObjectStoreExt};

/// Objects that are deleted at the same time.
const AT_A_TIME: usize = 16;

impl Flushed {
    /// Deletes the flush with the remains of the flushes that it replaced; returns how many objects
    /// it had. A flush that has replaced it since it was opened is not deleted (`Replaced`).
    ///
    /// If the process is killed in between, objects without a manifest remain, and are ignored.
    /// After a failure of the store, objects remain in the same way (`Left`).
    pub fn delete(self, access: &Access) -> Result<usize, FlushError> {
        let place = self.place().clone();
        let now = Flushed::at(place.clone(), access)?;
        if now.manifest() != self.manifest() {
            return Err(FlushError::Replaced { place: place.to_string() });
        }
        if self.is_journal() {
            return journal::delete(&place, access);
        }
        let bucket = Bucket::open(&place, access)?;
        let one = async |name: &str| match bucket.store().delete(&bucket.path(name)).await {
            Ok(()) | Err(Error::NotFound { .. }) => Ok(()),
            Err(e) => Err(reason(&e)),
        };
        let failed = |why| FlushError::Write { what: place.join(FLUSH_MANIFEST).to_string(), why };
        bucket.wait(one(FLUSH_MANIFEST)).map_err(failed)?;
        if let Some(directory) = place.directory() {
            // The manifest must not reappear after a loss of power, when its parts are gone.
            let synced = std::fs::File::open(directory).and_then(|directory| directory.sync_all());
            synced.map_err(|e| failed(e.to_string()))?;
        }
        let manifest = self.manifest();
        let parts = manifest.parts().map(|part| &*part.name);
        let names: Vec<&str> = parts.chain(manifest.replaces.iter().map(|name| &**name)).collect();
        let each = stream::iter(&names).map(|name| one(name)).buffer_unordered(AT_A_TIME);
        let failed: Vec<String> = bucket.wait(each.filter_map(async |done| done.err()).collect());
        if let Some(why) = failed.first() {
            let (place, count) = (place.to_string(), failed.len());
            return Err(FlushError::Left { place, count, why: why.clone() });
        }
        if let Some(directory) = place.directory() {
            // The directory stays if it contains something else.
            let _ = std::fs::remove_dir(directory);
        }
        Ok(manifest.parts().count() + 1)
    }
}
