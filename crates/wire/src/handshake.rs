//! The checks of a `Hello` in both kinds of node.

use crate::fields::{Field, Malformed, Reader};
use crate::messages::{HelloReply, HelloRequest, Status};
use crate::token::{Scope, TokenKey};
use honeycomb_types::limits::{PROTOCOL_MAJOR, PROTOCOL_MINOR};
use honeycomb_types::{PrefixId, SessionId};

/// A peer whose handshake was accepted.
#[derive(Clone, Debug)]
pub struct Greeted {
    /// The scope of its token.
    pub scope: Scope,
    /// The scope of its retries.
    pub session: SessionId,
    /// The prefix of its session's task, whose lease its traffic renews.
    pub task: Option<PrefixId>,
    /// Its request.
    pub hello: HelloRequest,
}

impl Greeted {
    /// Checks the arguments of a `Hello`: version, session, token, task. `clock_ms` is the
    /// controller's clock. The error is the refusal to send before the connection is closed.
    pub fn check(args: &[u8], key: &TokenKey, clock_ms: u64) -> Result<Greeted, (Status, String)> {
        // The major version is first, because the layout of the rest may differ.
        let bad_frame = |e: Malformed| (Status::BadFrame, e.to_string());
        let major = u16::get(&mut Reader::new(args)).map_err(bad_frame)?;
        if major != PROTOCOL_MAJOR {
            let text = format!("this peer speaks protocol version {PROTOCOL_MAJOR}, not {major}");
            return Err((Status::UnsupportedVersion, text));
        }
        let hello = HelloRequest::decode(args).map_err(bad_frame)?;
        if hello.session == 0 {
            return Err((
                Status::InvalidArgument,
                "a session must be a random number other than 0".into(),
            ));
        }
        let scope =
            key.verify(&hello.token).map_err(|e| (Status::Unauthenticated, e.to_string()))?;
        if clock_ms >= scope.expires_ms {
            return Err((Status::Unauthenticated, "the token has expired".into()));
        }
        let asked = (hello.task_prefix != 0).then_some(PrefixId(hello.task_prefix));
        if scope.task.is_some() && asked.is_some() && scope.task != asked {
            let text = "the token is for a different task than the session names".into();
            return Err((Status::PermissionDenied, text));
        }
        let session = SessionId(hello.session);
        Ok(Greeted { scope, session, task: scope.task.or(asked), hello })
    }

    /// The reply, as far as it follows from the request. Version 1.0 defines no feature.
    pub fn reply(&self, clock_ms: u64) -> HelloReply {
        HelloReply {
            major: PROTOCOL_MAJOR,
            // The smaller of both; ours is zero, so the peer's cannot be smaller.
            minor: PROTOCOL_MINOR,
            now_ms: clock_ms,
            job: self.scope.job.map_or(0, |j| j.0),
            ..HelloReply::default()
        }
    }
}
