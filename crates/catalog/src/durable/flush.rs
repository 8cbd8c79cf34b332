//! What the log says of a flush that is under way.

use super::codec::{BadRecord, Reader, Writer, bad};
use super::image::{get_at, put_at};
use crate::Written;
use crate::flush::PartState;
use crate::reply::{FlushState, FlushedPart, FlushedStructure};
use honeycomb_types::{BlockAt, Kind, PrefixId, StructureId};
use std::sync::Arc;

/// A flush as it stands: written when it begins, and when its parts become others. That one part more
/// is on disk has a record of its own.
#[derive(Clone, Debug)]
pub(crate) struct FlushImage {
    pub(crate) number: u64,
    pub(crate) prefix: PrefixId,
    pub(crate) directory: Arc<str>,
    pub(crate) job_name: Box<str>,
    pub(crate) address: Arc<str>,
    /// Which structures they were.
    pub(crate) ids: Vec<StructureId>,
    pub(crate) structures: Vec<FlushedStructure>,
    /// One for each part, in the order of the structures and of their parts.
    pub(crate) blocks: Vec<KeptImage>,
}

/// The block of a part.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeptImage {
    pub(crate) at: BlockAt,
    /// Hashes of a kv that are its own.
    pub(crate) range: (u64, u64),
    pub(crate) state: PartState,
}

impl FlushImage {
    /// Notes that a part is on disk.
    pub(crate) fn wrote(&mut self, part: usize, written: Written) -> Result<(), BadRecord> {
        let parts = self.structures.iter_mut().flat_map(|s| &mut s.parts);
        match (parts.zip(&mut self.blocks)).nth(part) {
            Some((told, block)) => {
                (told.written, block.state) = (written, PartState::Written);
                Ok(())
            }
            None => bad(format!("a flush has no part {part}")),
        }
    }

    pub(crate) fn put(&self, w: &mut Writer<'_>) {
        w.u64(self.number);
        w.u64(self.prefix.0);
        w.str(&self.directory);
        w.str(&self.job_name);
        w.str(&self.address);
        w.u32(self.structures.len() as u32);
        let mut blocks = self.blocks.iter();
        for (structure, id) in self.structures.iter().zip(&self.ids) {
            w.u64(id.0);
            w.str(&structure.name);
            w.u8(structure.kind.code());
            w.u8(structure.sealed.into());
            w.u32(structure.slots);
            w.u64(structure.max_items);
            w.u64(structure.max_bytes);
            w.u32(structure.parts.len() as u32);
            for (part, block) in structure.parts.iter().zip(&mut blocks) {
                w.str(&part.name);
                w.u64(part.start);
                put_written(w, part.written);
                put_at(w, block.at);
                w.u64(block.range.0);
                w.u64(block.range.1);
                w.u8(block.state as u8);
            }
        }
    }

    pub(crate) fn get(r: &mut Reader<'_>) -> Result<FlushImage, BadRecord> {
        let mut image = FlushImage {
            number: r.u64()?,
            prefix: PrefixId(r.u64()?),
            directory: r.str()?.into(),
            job_name: r.str()?.into(),
            address: r.str()?.into(),
            ids: Vec::new(),
            structures: Vec::new(),
            blocks: Vec::new(),
        };
        for _ in 0..r.count(38)? {
            image.ids.push(StructureId(r.u64()?));
            let name = r.str()?.into();
            let code = r.u8()?;
            let Some(kind) = Kind::from_code(code) else {
                return bad(format!("no kind of structure has the code {code:#x}"));
            };
            let (sealed, slots) = (r.bool()?, r.u32()?);
            let (max_items, max_bytes) = (r.u64()?, r.u64()?);
            let mut parts = Vec::new();
            for _ in 0..r.count(65)? {
                let (name, start) = (r.str()?.into(), r.u64()?);
                parts.push(FlushedPart { name, start, written: get_written(r)? });
                let (at, range) = (get_at(r)?, (r.u64()?, r.u64()?));
                let code = r.u8()?;
                let Some(state) = PartState::from_code(code) else {
                    return bad(format!("no state of a part has the code {code:#x}"));
                };
                image.blocks.push(KeptImage { at, range, state });
            }
            let structure =
                FlushedStructure { name, kind, sealed, slots, max_items, max_bytes, parts };
            image.structures.push(structure);
        }
        Ok(image)
    }
}

pub(crate) fn put_written(w: &mut Writer<'_>, written: Written) {
    w.u64(written.bytes);
    w.u64(written.items);
    w.u32(written.crc);
}

pub(crate) fn get_written(r: &mut Reader<'_>) -> Result<Written, BadRecord> {
    Ok(Written { bytes: r.u64()?, items: r.u64()?, crc: r.u32()? })
}

/// What became of the flush of a prefix that is over; nothing of one that is under way or was none.
pub(crate) fn put_outcome(w: &mut Writer<'_>, prefix: PrefixId, state: &FlushState) {
    w.u64(prefix.0);
    match state {
        FlushState::Lost(why) => w.str(why),
        _ => w.str(""),
    }
}

pub(crate) fn get_outcome(r: &mut Reader<'_>) -> Result<(PrefixId, FlushState), BadRecord> {
    let prefix = PrefixId(r.u64()?);
    let state = match r.str()? {
        "" => FlushState::Done,
        why => FlushState::Lost(why.into()),
    };
    Ok((prefix, state))
}
