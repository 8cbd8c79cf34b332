//! Taking: a value is read and deleted in one step, by one of all who ask.
//!
//! One that lies in its key's own block is returned by the delete. A larger one is read from its extents,
//! and then deleted if it still is these extents: who deletes it has it, and the others hear that it is
//! gone, or that there is another one by now.

use crate::error::Error;
use crate::kv::Kv;
use crate::transport::Sink;
use honeycomb_wire::{Op, Status};

impl Kv {
    /// Deletes a key and returns the value that it had, however large. It takes effect once, also when a
    /// request had to be repeated. `Busy` when a large value was replaced each time that it was read,
    /// until the time limit.
    pub fn take(&self, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        let deadline = self.0.deadline();
        loop {
            let (mut old, args) = (Vec::new(), [&[1], key].concat());
            match self.send_one(Op::KvDelete, key, &args, &[], Sink::Vec(&mut old)) {
                Ok(replied) => return Ok((replied.header.status == Status::Ok).then_some(old)),
                Err(e) if e.status == Status::ValueTooLarge => {}
                Err(e) => return Err(e),
            }
            let (read, length) = self.read(key, Sink::Vec(&mut old))?;
            if length.is_none() {
                return Ok(None);
            }
            if read.header.status == Status::Extents {
                let list: &[u8] = &read.args;
                let deleted = self.send_one(Op::KvDeleteExtents, key, key, &[list], Sink::None)?;
                match deleted.header.status {
                    Status::Ok => return Ok(Some(old)),
                    Status::KeyNotFound => return Ok(None),
                    // There is another value by now.
                    _ => {}
                }
            }
            self.admit_again(key, deadline)?;
        }
    }
}
