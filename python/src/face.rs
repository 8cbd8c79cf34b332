//! The native base class of Python's structures, so that their frequent calls run no Python code.
//!
//! `honeycomb.Kv` is a Python class that implements the rare calls. Its native base class implements the
//! calls that a program makes millions of times. The base class holds the native structure of this process
//! and opens it on first use and again after a fork. A forked process shares its parent's sockets, and with
//! them the session, so only the process that made a native object uses it.

use crate::client::Closed;
use crate::custom::NativeCustom;
use crate::queue::NativeQueue;
use crate::structures::{NativeFile, NativeKv};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, OnceLock};

static FORKS: AtomicU64 = AtomicU64::new(0);

/// Counts a fork. Python calls this in each child.
#[pyfunction]
pub fn count_fork() {
    FORKS.fetch_add(1, Relaxed);
}

/// The number of forks between the first process and this one.
#[pyfunction]
pub fn fork_generation() -> u64 {
    FORKS.load(Relaxed)
}

/// A native structure of any kind.
#[derive(FromPyObject, IntoPyObject)]
pub enum Native {
    /// A key-value store.
    Kv(Py<NativeKv>),
    /// A file.
    File(Py<NativeFile>),
    /// A queue.
    Queue(Py<NativeQueue>),
    /// A structure of a custom kind.
    Custom(Py<NativeCustom>),
}

impl Native {
    fn clone_ref(&self, py: Python<'_>) -> Native {
        match self {
            Native::Kv(one) => Native::Kv(one.clone_ref(py)),
            Native::File(one) => Native::File(one.clone_ref(py)),
            Native::Queue(one) => Native::Queue(one.clone_ref(py)),
            Native::Custom(one) => Native::Custom(one.clone_ref(py)),
        }
    }

    /// The number of the structure.
    fn identity(&self) -> u64 {
        let structure = match self {
            Native::Kv(one) => one.get().kv.structure(),
            Native::File(one) => one.get().file.structure(),
            Native::Queue(one) => one.get().queue.structure(),
            Native::Custom(one) => one.get().custom.structure(),
        };
        structure.id().0
    }

    fn closed(&self) -> Closed {
        match self {
            Native::Kv(one) => one.get().closed.clone(),
            Native::File(one) => one.get().closed.clone(),
            Native::Queue(one) => one.get().closed.clone(),
            Native::Custom(one) => one.get().closed.clone(),
        }
    }
}

/// A native structure, the process that made it, and whether its client was closed.
struct HeldNative {
    native: Native,
    made_in: u64,
    closed: Closed,
}

impl HeldNative {
    fn is_good(&self) -> bool {
        self.made_in == FORKS.load(Relaxed) && !self.closed.load(Relaxed)
    }
}

impl Drop for HeldNative {
    fn drop(&mut self) {
        if self.made_in != FORKS.load(Relaxed) {
            // Closing would write to sockets that belong to the parent, and wait for threads that do not
            // exist here, so the object is leaked.
            Python::attach(|py| std::mem::forget(self.native.clone_ref(py)));
        }
    }
}

/// The native base of a structure's Python object.
#[pyclass(subclass, frozen, module = "honeycomb._session")]
pub struct Face {
    held: Mutex<Option<HeldNative>>,
    /// The structure that was opened first. If another structure has its name by now, that one is never
    /// opened in its place.
    identity: OnceLock<u64>,
}

impl Face {
    /// A base object without an open structure.
    pub fn unopened() -> Face {
        Face { held: Mutex::new(None), identity: OnceLock::new() }
    }

    fn held(&self) -> MutexGuard<'_, Option<HeldNative>> {
        self.held.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn hold(&self, native: Native) {
        self.identity.get_or_init(|| native.identity());
        let (made_in, closed) = (FORKS.load(Relaxed), native.closed());
        let held = HeldNative { native, made_in, closed };
        // The previous structure is dropped after the lock is released, because dropping may run Python code.
        let before = self.held().replace(held);
        drop(before);
    }

    /// The native structure of this process. If there is none, `_open` of the Python class opens it.
    pub fn native(face: &Bound<'_, Face>) -> PyResult<Native> {
        let py = face.py();
        if let Some(held) = &*face.get().held()
            && held.is_good()
        {
            return Ok(held.native.clone_ref(py));
        }
        let opened: Native = face.call_method0(intern!(py, "_open"))?.extract()?;
        face.get().hold(opened.clone_ref(py));
        Ok(opened)
    }
}

#[pymethods]
impl Face {
    #[new]
    #[pyo3(signature = (*_args, **_named))]
    fn new(_args: &Bound<'_, PyTuple>, _named: Option<&Bound<'_, PyDict>>) -> Face {
        Face::unopened()
    }

    /// Stores the native structure that was just created, or opens one.
    fn _begin(slf: &Bound<'_, Face>, native: Option<Native>) -> PyResult<()> {
        match native {
            Some(native) => slf.get().hold(native),
            None => drop(Face::native(slf)?),
        }
        Ok(())
    }

    /// The number of the structure; `None` before it is first opened.
    #[getter]
    fn _identity(&self) -> Option<u64> {
        self.identity.get().copied()
    }

    /// The native structure of this process. Raises the errors of opening it.
    fn _native(slf: &Bound<'_, Face>) -> PyResult<Native> {
        Face::native(slf)
    }
}
