//! Access to object stores: endpoints, regions, credentials.

use crate::place::Place;
use crate::{FlushError, reason};
use object_store::ObjectStore;
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use std::fmt;
use std::io;
use std::sync::Arc;

/// Access settings for object stores: environment variables that begin with `AWS_`, `GOOGLE_` or
/// `AZURE_`, as other tools use them. They are secret: never displayed, and sent only to the
/// stores.
#[derive(Clone, Default)]
pub struct Access(Vec<(String, String)>);

impl Access {
    /// No settings: for directories, and for stores that need none.
    pub fn none() -> Access {
        Access::default()
    }

    /// The settings of the environment.
    pub fn of_environment() -> Access {
        let said = std::env::vars_os().filter_map(|(name, value)| {
            Some((name.into_string().ok()?, value.into_string().ok()?))
        });
        said.fold(Access::none(), |access, (name, value)| access.with(&name, &value))
    }

    /// Adds one variable.
    pub fn with(mut self, name: &str, value: &str) -> Access {
        if ["AWS_", "GOOGLE_", "AZURE_"].iter().any(|cloud| name.starts_with(cloud)) {
            self.0.push((name.to_ascii_lowercase(), value.to_owned()));
        }
        self
    }

    #[cfg(feature = "clouds")]
    fn of<'a, K: std::str::FromStr>(
        &'a self,
        cloud: &'a str,
    ) -> impl Iterator<Item = (K, &'a str)> + use<'a, K> {
        let own = self.0.iter().filter(move |(name, _)| name.starts_with(cloud));
        own.filter_map(|(name, value)| Some((name.parse().ok()?, &**value)))
    }
}

impl fmt::Debug for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.iter().map(|(name, _)| name)).finish()
    }
}

/// Opens the store of a place without sending anything. Returns it with the place's path in the
/// store.
pub(crate) fn open(
    place: &Place,
    access: &Access,
) -> Result<(Arc<dyn ObjectStore>, Path), FlushError> {
    match place {
        Place::Directory(root) => Ok((directory(root)?, Path::default())),
        Place::Bucket { path, .. } => {
            let path = Path::parse(path)
                .map_err(|e| FlushError::Path { path: place.to_string(), why: e.to_string() })?;
            Ok((bucket(place, access)?, path))
        }
    }
}

/// The same for data that need not outlive the process: writes are not synchronised, and empty
/// directories are removed.
pub(crate) fn open_scratch(
    place: &Place,
    access: &Access,
) -> Result<(Arc<dyn ObjectStore>, Path), FlushError> {
    match place {
        Place::Directory(root) => {
            Ok((Arc::new(disk(root)?.with_automatic_cleanup(true)), Path::default()))
        }
        Place::Bucket { .. } => open(place, access),
    }
}

/// A directory as a store. It must exist now: a missing directory is not created again.
pub(crate) fn directory(root: &std::path::Path) -> Result<Arc<dyn ObjectStore>, FlushError> {
    Ok(Arc::new(disk(root)?.with_fsync(true)))
}

fn disk(root: &std::path::Path) -> Result<LocalFileSystem, FlushError> {
    let refuse = |why: String| FlushError::Root { root: root.display().to_string(), why };
    let found = std::fs::metadata(root).map_err(|e| refuse(e.to_string()))?;
    if !found.is_dir() {
        return Err(refuse(io::Error::from(io::ErrorKind::NotADirectory).to_string()));
    }
    LocalFileSystem::new_with_prefix(root).map_err(|e| refuse(reason(&e)))
}

#[cfg(not(feature = "clouds"))]
fn bucket(place: &Place, _access: &Access) -> Result<Arc<dyn ObjectStore>, FlushError> {
    let why = "this program was built without its feature `clouds` and supports only directories";
    Err(FlushError::Root { root: place.to_string(), why: why.into() })
}

#[cfg(feature = "clouds")]
fn bucket(place: &Place, access: &Access) -> Result<Arc<dyn ObjectStore>, FlushError> {
    use crate::place::Cloud;
    use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
    use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
    use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};

    let Place::Bucket { cloud, bucket, .. } = place else {
        unreachable!("a directory is no bucket")
    };
    // Sets the crypto provider of this process; one that is already set serves as well.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let built: object_store::Result<Arc<dyn ObjectStore>> = match cloud {
        Cloud::S3 => {
            let mut builder = AmazonS3Builder::new().with_retry(patience());
            for (key, value) in access.of::<AmazonS3ConfigKey>("aws_") {
                builder = builder.with_config(key, value);
            }
            builder.with_bucket_name(bucket).build().map(|s| Arc::new(s) as _)
        }
        Cloud::Google => {
            let mut builder = GoogleCloudStorageBuilder::new().with_retry(patience());
            for (key, value) in access.of::<GoogleConfigKey>("google_") {
                builder = builder.with_config(key, value);
            }
            builder.with_bucket_name(bucket).build().map(|s| Arc::new(s) as _)
        }
        Cloud::Azure => {
            let mut builder = MicrosoftAzureBuilder::new().with_retry(patience());
            for (key, value) in access.of::<AzureConfigKey>("azure_") {
                builder = builder.with_config(key, value);
            }
            builder.with_container_name(bucket).build().map(|s| Arc::new(s) as _)
        }
    };
    built.map_err(|e| FlushError::Root { root: place.to_string(), why: reason(&e) })
}

/// How long one request is repeated before it fails; the caller then decides how to continue.
#[cfg(feature = "clouds")]
fn patience() -> object_store::RetryConfig {
    use std::time::Duration;
    let backoff = object_store::BackoffConfig {
        init_backoff: Duration::from_millis(100),
        max_backoff: Duration::from_secs(2),
        base: 2.0,
    };
    object_store::RetryConfig { backoff, max_retries: 8, retry_timeout: Duration::from_secs(10) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn access_is_kept_to_itself() {
        let access = Access::none()
            .with("AWS_SECRET_ACCESS_KEY", "sesame")
            .with("HOME", "/root")
            .with("AWS_ENDPOINT", "http://127.0.0.1:1");
        let shown = format!("{access:?}");
        assert!(shown.contains("aws_secret_access_key") && !shown.contains("sesame"), "{shown}");
        assert!(!shown.contains("home"), "{shown}");
    }
}
