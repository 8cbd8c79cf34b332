//! Deleting a flush: the manifest first, so that it is none from then on, then what it named.

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
    /// Deletes it, with what is left of the flushes that it replaced; answers how many objects it had. A
    /// flush that took its place since it was opened is left alone (`Replaced`).
    ///
    /// Whoever is killed in between leaves objects without a manifest, which mean nothing; so does a store
    /// that fails (`Left`).
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
            // Not to be seen again after a loss of power, when its parts are gone.
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
            // It stays where something else is in it.
            let _ = std::fs::remove_dir(directory);
        }
        Ok(manifest.parts().count() + 1)
    }
}
