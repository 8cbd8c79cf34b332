//! Tokens, for the controller, and grants, for the data plane.
//!
//! Both are bytes that prove the authority of their holder; ids alone give none. A token is a chain
//! of HMAC-SHA256 tags: each caveat is authenticated under the tag before it, so a holder can
//! narrow a token offline and nobody can widen one (docs/adr/0003). The controller issues a grant
//! when a structure is opened, and every data request is checked against it.

use crate::fields::{Field, Malformed, Reader};
use hmac::{Hmac, KeyInit, Mac};
use honeycomb_types::limits::TOKEN_MAX;
use honeycomb_types::{Generation, IdCipher, JobId, PrefixId, StructureId, Verbs};
use sha2::Sha256;
use thiserror::Error;

const VERSION: u8 = 1;
const TAG: usize = 32;
const GRANT_BODY: usize = 39;
const GRANT_MAC: usize = 16;
/// Bytes of a grant.
pub const GRANT_LEN: usize = GRANT_BODY + GRANT_MAC;

/// Why a token or grant was refused. It reveals no more than its holder may know.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Unproven {
    /// Not a token.
    #[error("the token or grant is malformed: {0}")]
    Malformed(#[from] Malformed),
    /// Too long, of another version, or with a caveat that this build does not know.
    #[error("the token or grant has a format that this peer does not know")]
    UnknownForm,
    /// The tag does not match: forged, truncated, or of another cluster.
    #[error("the token or grant was not issued by this cluster, or was altered")]
    Forged,
}

/// The cluster's secret, from which the other keys are derived. 32 random bytes.
#[derive(Clone)]
pub struct RootKey(pub [u8; 32]);

/// The key that authenticates tokens. Controllers and memory servers hold it.
#[derive(Clone)]
pub struct TokenKey(pub [u8; 32]);

/// The key that authenticates grants. Controllers and memory servers hold it.
#[derive(Clone)]
pub struct GrantKey(pub [u8; 32]);

impl RootKey {
    /// The key for tokens.
    pub fn token_key(&self) -> TokenKey {
        TokenKey(mac(&self.0, &[b"honeycomb token v1"]))
    }

    /// The key for grants.
    pub fn grant_key(&self) -> GrantKey {
        GrantKey(mac(&self.0, &[b"honeycomb grant v1"]))
    }

    /// The permutation that turns the controller's counters into ids.
    pub fn id_cipher(&self) -> IdCipher {
        let key = mac(&self.0, &[b"honeycomb ids v1"]);
        IdCipher::new(*key.first_chunk().expect("a MAC has 32 bytes"))
    }
}

/// A restriction added to a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Caveat {
    /// The holder is the task of this prefix: it may write there, and read all of its job.
    Task(PrefixId),
    /// At most these verbs.
    Verbs(Verbs),
    /// Valid until this time on the controller's clock, in milliseconds.
    Expires(u64),
    /// Valid for one life of the job: while this prefix is its root.
    Life(PrefixId),
}

impl Caveat {
    fn encode(self) -> Vec<u8> {
        let (kind, body) = match self {
            Caveat::Task(prefix) => (1u8, prefix.0.to_le_bytes().to_vec()),
            Caveat::Verbs(verbs) => (2, verbs.0.to_le_bytes().to_vec()),
            Caveat::Expires(ms) => (3, ms.to_le_bytes().to_vec()),
            Caveat::Life(root) => (4, root.0.to_le_bytes().to_vec()),
        };
        [&[kind, body.len() as u8][..], &body].concat()
    }
}

/// The authority of a verified token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scope {
    /// The job; `None` is the whole cluster.
    pub job: Option<JobId>,
    /// The task, if the token was narrowed to one.
    pub task: Option<PrefixId>,
    /// The verbs that it allows on data.
    pub verbs: Verbs,
    /// When it expires, on the controller's clock in milliseconds; `u64::MAX` for never.
    pub expires_ms: u64,
    /// The root prefix of the job's life for which it is valid; `None` for every life.
    pub life: Option<PrefixId>,
}

impl Scope {
    /// Whether it is the cluster's own token without any restriction.
    pub fn is_whole_cluster(&self) -> bool {
        self.job.is_none() && self.task.is_none() && self.verbs == Verbs::ALL
    }
}

impl TokenKey {
    /// A token for a job, or for the whole cluster.
    pub fn issue(&self, job: Option<JobId>) -> Vec<u8> {
        let mut token = vec![VERSION];
        job.map_or(0, |j| j.0).put(&mut token);
        token.push(0);
        let tag = mac(&self.0, &[&token[..9]]);
        token.extend_from_slice(&tag);
        token
    }

    /// Checks a token and combines its caveats. The caller checks whether it has expired.
    pub fn verify(&self, token: &[u8]) -> Result<Scope, Unproven> {
        let parts = Parts::read(token)?;
        let mut tag = mac(&self.0, &[&token[..9]]);
        let job = (parts.job != 0).then_some(JobId(parts.job));
        let mut scope =
            Scope { job, task: None, verbs: Verbs::ALL, expires_ms: u64::MAX, life: None };
        let mut conflict = false;
        for (kind, body) in &parts.caveats {
            tag = mac(&tag, &[&[*kind, body.len() as u8], body]);
            let mut reader = Reader::new(body);
            match kind {
                1 => {
                    let task = PrefixId(u64::get(&mut reader)?);
                    // The first one stays: a later caveat restricts, and cannot add another task.
                    conflict |= *scope.task.get_or_insert(task) != task;
                }
                2 => scope.verbs = scope.verbs.and(Verbs(u16::get(&mut reader)?)),
                3 => scope.expires_ms = scope.expires_ms.min(u64::get(&mut reader)?),
                4 => {
                    let root = PrefixId(u64::get(&mut reader)?);
                    conflict |= *scope.life.get_or_insert(root) != root;
                }
                _ => return Err(Unproven::UnknownForm),
            }
            reader.finish()?;
        }
        if !same(&tag, parts.tag) {
            return Err(Unproven::Forged);
        }
        // A token for two different tasks or lives allows nothing.
        if conflict {
            scope.verbs = Verbs::NONE;
        }
        Ok(scope)
    }
}

/// Adds a caveat to a token. Needs no key: the holder can do it offline, and cannot undo it.
pub fn attenuate(token: &[u8], caveat: Caveat) -> Result<Vec<u8>, Unproven> {
    let parts = Parts::read(token)?;
    let Ok(count) = u8::try_from(parts.caveats.len() + 1) else {
        return Err(Unproven::UnknownForm);
    };
    let encoded = caveat.encode();
    let tag = mac(parts.tag, &[&encoded]);
    let body = &token[10..token.len() - TAG];
    let narrowed = [&token[..9], &[count], body, &encoded, &tag].concat();
    if narrowed.len() > TOKEN_MAX {
        return Err(Unproven::UnknownForm);
    }
    Ok(narrowed)
}

struct Parts<'a> {
    job: u64,
    caveats: Vec<(u8, &'a [u8])>,
    tag: &'a [u8],
}

impl<'a> Parts<'a> {
    fn read(token: &'a [u8]) -> Result<Parts<'a>, Unproven> {
        if token.len() > TOKEN_MAX {
            return Err(Unproven::UnknownForm);
        }
        let mut reader = Reader::new(token);
        if u8::get(&mut reader)? != VERSION {
            return Err(Unproven::UnknownForm);
        }
        let job = u64::get(&mut reader)?;
        let count = u8::get(&mut reader)?;
        let mut caveats = Vec::with_capacity(count as usize);
        for _ in 0..count {
            let kind = u8::get(&mut reader)?;
            let length = u8::get(&mut reader)? as usize;
            caveats.push((kind, reader.take(length)?));
        }
        let tag = reader.take(TAG)?;
        reader.finish()?;
        Ok(Parts { job, caveats, tag })
    }
}

/// The authority over one structure's blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The job.
    pub job: JobId,
    /// The prefix.
    pub prefix: PrefixId,
    /// The structure.
    pub structure: StructureId,
    /// The allowed verbs.
    pub verbs: Verbs,
    /// The version of the prefix's permissions under which it was issued.
    pub generation: Generation,
    /// When it expires, on the controller's clock in milliseconds.
    pub expires_ms: u64,
}

impl GrantKey {
    /// The bytes of a grant.
    pub fn issue(&self, grant: &Grant) -> Vec<u8> {
        let mut out = Vec::with_capacity(GRANT_LEN);
        out.push(VERSION);
        grant.verbs.0.put(&mut out);
        grant.generation.0.put(&mut out);
        grant.job.0.put(&mut out);
        grant.prefix.0.put(&mut out);
        grant.structure.0.put(&mut out);
        grant.expires_ms.put(&mut out);
        assert_eq!(out.len(), GRANT_BODY, "the layout of a grant is frozen");
        let tag = mac(&self.0, &[&out]);
        out.extend_from_slice(&tag[..GRANT_MAC]);
        out
    }

    /// Checks the bytes of a grant.
    pub fn verify(&self, bytes: &[u8]) -> Result<Grant, Unproven> {
        let mut reader = Reader::new(bytes);
        let body = reader.take(GRANT_BODY)?;
        let tag = reader.take(GRANT_MAC)?;
        reader.finish()?;
        if body[0] != VERSION {
            return Err(Unproven::UnknownForm);
        }
        if !same(&mac(&self.0, &[body])[..GRANT_MAC], tag) {
            return Err(Unproven::Forged);
        }
        let mut reader = Reader::new(&body[1..]);
        Ok(Grant {
            verbs: Verbs(u16::get(&mut reader)?),
            generation: Generation(u32::get(&mut reader)?),
            job: JobId(u64::get(&mut reader)?),
            prefix: PrefixId(u64::get(&mut reader)?),
            structure: StructureId(u64::get(&mut reader)?),
            expires_ms: u64::get(&mut reader)?,
        })
    }
}

fn mac(key: &[u8], parts: &[&[u8]]) -> [u8; TAG] {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("HMAC takes a key of any length");
    for part in parts {
        mac.update(part);
    }
    mac.finalize().into_bytes().into()
}

/// Compares in a time that does not reveal the position of the first difference.
fn same(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |acc, (x, y)| acc | (x ^ y)) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key() -> TokenKey {
        RootKey([7; 32]).token_key()
    }

    #[test]
    fn a_token_can_be_narrowed_offline_and_never_widened() {
        let token = key().issue(Some(JobId(5)));
        let task = attenuate(&token, Caveat::Task(PrefixId(9))).unwrap();
        let task = attenuate(&task, Caveat::Verbs(Verbs::READ)).unwrap();
        let scope = key().verify(&task).unwrap();
        assert_eq!((scope.job, scope.task), (Some(JobId(5)), Some(PrefixId(9))));
        assert_eq!(scope.verbs, Verbs::READ);
        let wider = attenuate(&task, Caveat::Verbs(Verbs::ALL)).unwrap();
        assert_eq!(key().verify(&wider).unwrap().verbs, Verbs::READ);
        let other = attenuate(&task, Caveat::Task(PrefixId(10))).unwrap();
        assert_eq!(key().verify(&other).unwrap().verbs, Verbs::NONE);
    }

    #[test]
    fn every_altered_byte_is_noticed() {
        let token = attenuate(&key().issue(Some(JobId(5))), Caveat::Expires(77)).unwrap();
        for i in 0..token.len() {
            let mut forged = token.clone();
            forged[i] ^= 1;
            assert!(key().verify(&forged).is_err(), "byte {i} could be changed");
            assert!(key().verify(&token[..i]).is_err(), "{i} bytes were enough");
        }
        assert!(RootKey([8; 32]).token_key().verify(&token).is_err());
    }

    #[test]
    fn grants_round_trip_and_resist_tampering() {
        let key = RootKey([7; 32]).grant_key();
        let grant = Grant {
            job: JobId(1),
            prefix: PrefixId(2),
            structure: StructureId(3),
            verbs: Verbs::READ,
            generation: Generation(4),
            expires_ms: 5,
        };
        let bytes = key.issue(&grant);
        assert_eq!(key.verify(&bytes).unwrap(), grant);
        for i in 0..bytes.len() {
            let mut forged = bytes.clone();
            forged[i] ^= 0x80;
            assert!(key.verify(&forged).is_err(), "byte {i} could be changed");
        }
    }
}
