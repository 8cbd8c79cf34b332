//! Replies and requests to servers, held until what they rest on is on the log.
//!
//! A round of the loop takes requests, applies them, and puts what is to be said here. At its end one
//! commit writes all that has changed, and then it is said. When the log cannot be written, replies to
//! changes become refusals, and what servers were to do waits for new files.

use crate::service::ControllerService;
use crate::store::{RENEW_AGAIN, StoreError};
use honeycomb_env::{ConnId, Net, ReplyPayload};
use honeycomb_types::Time;
use honeycomb_wire::{Op, ReplyHeader, RequestHeader, Status};

/// What is to be said.
pub(crate) enum Out {
    /// An answer; `changed` when it tells of something that a log must have.
    Reply { to: ConnId, request: u64, body: Vec<u8>, changed: bool },
    /// A refusal.
    Refuse { to: ConnId, request: u64, status: Status, text: String },
    /// A request of ours to a memory server.
    Ask { to: ConnId, number: u64, op: Op, body: Vec<u8> },
}

impl ControllerService {
    /// Commits what this round has changed, and says what was to be said.
    pub(crate) fn settle(&mut self, net: &mut Net, now: Time) {
        match self.write(now) {
            Ok(()) => {
                let held = std::mem::take(&mut self.held);
                let out = std::mem::take(&mut self.out);
                held.into_iter().chain(out).for_each(|out| say(net, out));
            }
            Err(why) => {
                for out in std::mem::take(&mut self.out) {
                    match out {
                        Out::Reply { to, request, changed: true, .. } => {
                            let text = format!("{why}; the change may have been made");
                            net.refuse(to, request, Status::LogFailed, &text);
                        }
                        Out::Ask { .. } => self.held.push(out),
                        other => say(net, other),
                    }
                }
            }
        }
        self.wait = false;
        self.records.clear();
    }

    fn write(&mut self, now: Time) -> Result<(), String> {
        let Some(store) = &mut self.store else { return Ok(()) };
        if store.trouble().is_none() {
            let written = store.commit(now, &mut self.catalog, &self.records, self.wait);
            let written = written.and_then(|()| match store.is_long() && now >= self.renew_at {
                true => {
                    self.renew_at = now + RENEW_AGAIN;
                    match store.renew(now, &mut self.catalog, &self.answers) {
                        // The old files still take everything: tried again, and nobody need know.
                        Err(e) if store.trouble().is_none() => {
                            eprintln!("honeycomb: the controller's log cannot be renewed: {e}");
                            Ok(())
                        }
                        other => other,
                    }
                }
                false => Ok(()),
            });
            let Err(e) = written else { return Ok(()) };
            self.renew_at = now;
            eprintln!(
                "honeycomb: the controller changes nothing until its log can be written: {e}"
            );
        }
        if now < self.renew_at {
            return Err(self.trouble().unwrap_or_default());
        }
        self.renew_at = now + RENEW_AGAIN;
        let renewed = store.renew(now, &mut self.catalog, &self.answers);
        match renewed {
            Ok(()) => {
                eprintln!("honeycomb: the controller's log is written again");
                Ok(())
            }
            Err(StoreError::Stopped { why }) => Err(why),
            Err(e) => Err(e.to_string()),
        }
    }

    /// Why nothing can be changed, if that is so.
    pub(crate) fn trouble(&self) -> Option<String> {
        let why = self.store.as_ref()?.trouble()?;
        Some(format!("the controller cannot write its log: {why}"))
    }

    pub(crate) fn reply(&mut self, to: ConnId, request: u64, body: Vec<u8>, changed: bool) {
        self.out.push(Out::Reply { to, request, body, changed });
    }

    pub(crate) fn refuse(&mut self, to: ConnId, request: u64, status: Status, text: String) {
        self.out.push(Out::Refuse { to, request, status, text });
    }
}

fn say(net: &mut Net, out: Out) {
    match out {
        Out::Reply { to, request, body, .. } => {
            let header = ReplyHeader::new(Status::Ok, request, 0);
            net.reply(to, header, &body, ReplyPayload::Copy(&[]));
        }
        Out::Refuse { to, request, status, text } => net.refuse(to, request, status, &text),
        Out::Ask { to, number, op, body } => {
            let header = RequestHeader { request: number, ..RequestHeader::new(op) };
            net.request(to, header, &body, ReplyPayload::Copy(&[]));
        }
    }
}
