//! Buckets of objects, like those of Pocket (OSDI '18).
//!
//! A bucket is a prefix that contains a key-value store of the name `STORE`. The name of an object is
//! its key. The command line and the bindings use these functions.

use crate::handle::Handle;
use crate::{Error, JobClient, Kv};
use honeycomb_wire::Status;
use honeycomb_wire::messages::{PrefixInfo, PrefixOptions};

/// The name of the key-value store of a bucket, in the bucket's prefix.
const STORE: &str = "objects";

/// The behaviour of `create` when the prefix exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IfExists {
    /// It fails with `AlreadyExists`.
    Fail,
    /// It opens the bucket, whose options do not change.
    Open,
    /// It opens the bucket if that outlives its job; otherwise it fails with `AlreadyExists`.
    OpenPersistent,
}

/// Opens the store with a bucket's objects.
pub fn open(on: JobClient<'_>, bucket: &str) -> Result<Kv, Error> {
    on.client.open_kv(on.job, &store_of(bucket))
}

/// Creates a bucket with its parent prefixes; answers whether this call created its prefix.
pub fn create(
    on: JobClient<'_>,
    bucket: &str,
    options: PrefixOptions,
    blocks: u32,
    if_exists: IfExists,
) -> Result<bool, Error> {
    if let Some((above, _)) = bucket.rsplit_once('/') {
        on.ensure_prefix(above)?;
    }
    let made = match on.client.create_prefix(on.job, bucket, &[], options) {
        Ok(_) => true,
        Err(e) if e.status != Status::AlreadyExists || if_exists == IfExists::Fail => {
            return Err(e);
        }
        Err(_) => false,
    };
    if !made && if_exists == IfExists::OpenPersistent {
        let dag = on.dag()?;
        if !dag.node(dag.find(bucket)?).persist {
            let text = format!(
                "the bucket {bucket} exists and ends with its job; nothing was stored; use \
                 another bucket, or create this one again with persist"
            );
            return Err(Error::new(Status::AlreadyExists, text));
        }
    }
    // The store may be missing even if the prefix exists: its creator may have failed before this step,
    // or the prefix is not a bucket yet.
    on.client.create_kv(on.job, &store_of(bucket), blocks, true)?;
    Ok(made)
}

/// Removes a bucket if it exists. A prefix without a store of objects is no bucket and is left alone.
pub fn remove_if_there(on: JobClient<'_>, bucket: &str) -> Result<(), Error> {
    let dag = on.dag()?;
    if dag.find(bucket).is_ok_and(|found| is_bucket(dag.node(found))) {
        on.client.remove_prefix(on.job, bucket)?;
    }
    Ok(())
}

/// The paths of all buckets, sorted.
pub fn list(on: JobClient<'_>) -> Result<Vec<String>, Error> {
    let dag = on.dag()?;
    let all = (0..dag.nodes().len()).filter(|&n| is_bucket(dag.node(n))).map(|n| dag.path(n));
    let mut all: Vec<String> = all.filter(|path| !path.is_empty()).collect();
    all.sort();
    Ok(all)
}

/// The address of the store with a bucket's objects.
pub fn store_of(bucket: &str) -> String {
    format!("{bucket}:{STORE}")
}

/// Whether a prefix is live and has the store of a bucket.
fn is_bucket(node: &PrefixInfo) -> bool {
    let mut all = node.structures.iter();
    node.state == 0 && all.any(|s| s.name == STORE && s.kind == Kv::KIND.code())
}
