//! The raw speed of a store: a baseline against which a flush is measured.

use crate::access::{self, Access};
use crate::place::Place;
use crate::raw::Session;
use crate::{FlushError, reason};
use bytes::Bytes;
use object_store::path::Path;
use object_store::{Error, ObjectStoreExt, PutPayload};
use std::collections::VecDeque;

/// A place that only stores objects. The same library accesses it as for flushes, but without
/// blocks, checksums and manifest.
pub struct Alone(Session);

impl Alone {
    /// Opens a place.
    pub fn open(place: &Place, access: &Access) -> Result<Alone, FlushError> {
        let (store, path) = access::open(place, access)?;
        Session::with(place, store, path).map(Alone)
    }

    /// Writes objects with the same bytes under these names, `at_a_time` concurrently, and replaces
    /// existing ones.
    pub fn put(&self, names: &[String], bytes: &[u8], at_a_time: usize) -> Result<(), FlushError> {
        let Alone(session) = self;
        let bytes = Bytes::copy_from_slice(bytes);
        let failed = |e: Error| session.unwritten(reason(&e));
        let mut puts = VecDeque::new();
        let mut given = names.iter().map(|name| {
            let (store, path, bytes) = (session.store.clone(), self.at(name), bytes.clone());
            session
                .objects()
                .spawn(async move { store.put(&path, PutPayload::from(bytes)).await.map(drop) })
        });
        loop {
            puts.extend(given.by_ref().take(at_a_time.max(1) - puts.len()));
            let Some(put) = puts.pop_front() else { return Ok(()) };
            session.objects().wait(put).unwrap_or_else(|e| Err(e.into())).map_err(failed)?;
        }
    }

    /// Deletes objects; missing objects count as deleted.
    pub fn delete(&self, names: &[String]) -> Result<(), FlushError> {
        let Alone(session) = self;
        for name in names {
            match session.objects().wait(session.store.delete(&self.at(name))) {
                Ok(()) | Err(Error::NotFound { .. }) => {}
                Err(e) => return Err(session.unwritten(reason(&e))),
            }
        }
        Ok(())
    }

    fn at(&self, name: &str) -> Path {
        let Alone(session) = self;
        session.path.parts().chain(Path::from(name).parts()).collect()
    }
}
