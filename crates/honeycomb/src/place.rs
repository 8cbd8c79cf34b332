//! Addresses as arguments.

use honeycomb_types::{Address, split_path};

/// The address of a structure, as a clap parser.
pub fn structure(text: &str) -> Result<String, String> {
    if text.trim_matches('/').is_empty() {
        return Err(
            "the address of a structure is prefix[/prefix...][:name], such as notes:kv, or :name \
             in the job's root"
                .into(),
        );
    }
    if text.ends_with(':') {
        return Err("the address ends with a colon, but no name follows".into());
    }
    Address::parse(text).map_err(|e| e.to_string())?;
    Ok(text.to_owned())
}

/// The path of a prefix, as a clap parser; the job's root is `/`.
pub fn prefix(text: &str) -> Result<String, String> {
    if let Some((path, _)) = text.split_once(':') {
        return Err(format!("this is the address of a structure; its prefix is '{path}'"));
    }
    let path = text.trim_matches('/');
    split_path(path).map_err(|e| e.to_string())?;
    Ok(path.to_owned())
}

/// The path of a prefix or the address of a structure, as a clap parser.
pub fn any(text: &str) -> Result<String, String> {
    if text.contains(':') { structure(text) } else { prefix(text) }
}
