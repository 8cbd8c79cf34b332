//! Taking: one of several concurrent callers reads and deletes a value atomically.
//!
//! The delete returns a value that is in its key's own block. A larger one is read from its extents
//! and then deleted if the key still has these extents: the caller that deletes it has it. The
//! others learn that the value is gone or has been replaced.

use crate::error::Error;
use crate::kv::Kv;
use crate::transport::Sink;
use honeycomb_wire::{Op, Status};

impl Kv {
    /// Deletes a key and returns its value, of any size. It takes effect once, even if a request
    /// had to be repeated. `Busy` if a large value was replaced during each read until the
    /// deadline.
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
                    // The key now has another value.
                    _ => {}
                }
            }
            self.admit_again(key, deadline)?;
        }
    }
}
