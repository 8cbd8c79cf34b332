//! Addresses as arguments, and the prefixes on the way to them.

use crate::cluster::Work;
use crate::failure::Outcome;
use honeycomb_client::Error;
use honeycomb_types::{Address, split_path};
use honeycomb_wire::Status;
use honeycomb_wire::messages::PrefixOptions;

/// The address of a structure, as a clap parser.
pub fn structure(text: &str) -> Result<String, String> {
    if text.trim_matches('/').is_empty() {
        return Err(
            "an address is prefix[/prefix...][:name], such as notes:kv; ':name' alone is a \
             structure of the job's root"
                .into(),
        );
    }
    if text.ends_with(':') {
        return Err("it ends with a colon but names no structure".into());
    }
    Address::parse(text).map_err(|e| e.to_string())?;
    Ok(text.to_owned())
}

/// The path of a prefix; the job's root is `/`. As a clap parser.
pub fn prefix(text: &str) -> Result<String, String> {
    if let Some((path, _)) = text.split_once(':') {
        return Err(format!("it is the address of a structure; '{path}' is its prefix"));
    }
    let path = text.trim_matches('/');
    split_path(path).map_err(|e| e.to_string())?;
    Ok(path.to_owned())
}

/// The path of a prefix, or the address of a structure. As a clap parser.
pub fn any(text: &str) -> Result<String, String> {
    if text.contains(':') { structure(text) } else { prefix(text) }
}

/// Creates the prefixes on the way to a structure that are missing.
pub fn ensure_prefix(work: &Work, address: &str) -> Outcome {
    let parts = split_path(Address::parse(address)?.path)?;
    for depth in 1..=parts.len() {
        let path = format!("/{}", parts[..depth].join("/"));
        let made = work.client.create_prefix(work.job, &path, &[], PrefixOptions::default());
        match made {
            Ok(_) | Err(Error { status: Status::AlreadyExists, .. }) => {}
            Err(e) => return Err(e.into()),
        }
    }
    Ok(())
}
