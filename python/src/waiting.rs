//! Calls that wait for an event, and listeners.
//!
//! A wait runs in the native client, without the GIL. A signal to the thread ends it, so that Python's
//! handlers run; unless they raise, the wait resumes. An interrupt that the thread adopted ends the wait
//! permanently, as if its timeout had passed.

use crate::convert::{checked, raise};
use honeycomb_client::{Error, Heard, Interrupt, Listener, Notification, Structure, interrupted};
use honeycomb_env::Clock;
use honeycomb_types::Time;
use honeycomb_wire::notice::Filter;
use pyo3::IntoPyObjectExt;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use std::sync::Mutex;
use std::time::Duration;

/// Longest single wait. A wait without limit starts again afterwards.
const WAIT_STEP: Duration = Duration::from_secs(3600);

/// Waits up to `wait` seconds (`None`: without limit) until `attempt` returns a result.
pub fn wait_for<T: Send>(
    py: Python<'_>,
    wait: Option<f64>,
    mut attempt: impl FnMut(Duration) -> Result<Option<T>, Error> + Send,
) -> PyResult<Option<T>> {
    let clock = Clock::start();
    let until = match wait {
        None => Time::NEVER,
        Some(seconds) => match Duration::try_from_secs_f64(seconds.max(0.0)) {
            Ok(wait) if wait < 1000 * 24 * WAIT_STEP => clock.now() + wait,
            _ => Time::NEVER,
        },
    };
    loop {
        let left = until.since(clock.now()).min(WAIT_STEP);
        let found = py.detach(|| attempt(left));
        if let Some(found) = checked(py, found)? {
            return Ok(Some(found));
        }
        py.check_signals()?;
        if interrupted() || clock.now() >= until {
            return Ok(None);
        }
    }
}

/// Ends the waits of the thread that adopted it, as if their timeouts had passed, when it is set.
#[pyclass(frozen, module = "honeycomb._native")]
pub struct NativeInterrupt(Interrupt);

#[pymethods]
impl NativeInterrupt {
    #[new]
    fn new() -> PyResult<NativeInterrupt> {
        Ok(NativeInterrupt(Interrupt::new()?))
    }

    /// Makes the waits of the calling thread end when this is set.
    fn adopt(&self) {
        self.0.adopt();
    }

    /// Ends the wait of the thread, and its later ones until `clear`.
    fn set(&self) {
        self.0.set();
    }

    /// Lets the thread wait again.
    fn clear(&self) {
        self.0.clear();
    }
}

/// As `wait_for`, for a condition.
pub fn until(
    py: Python<'_>,
    wait: Option<f64>,
    mut attempt: impl FnMut(Duration) -> Result<bool, Error> + Send,
) -> PyResult<bool> {
    let met = wait_for(py, wait, |left| Ok(attempt(left)?.then_some(())))?;
    Ok(met.is_some())
}

/// The filter for one key, for a prefix of keys, or for all keys.
pub fn filter(key: Option<Vec<u8>>, prefix: Option<Vec<u8>>) -> Filter {
    match (key, prefix) {
        (Some(key), _) => Filter::Key(key),
        (None, Some(prefix)) => Filter::Prefix(prefix),
        (None, None) => Filter::All,
    }
}

/// A subscription. One thread at a time waits in it; other threads wait for that thread.
#[pyclass(frozen, module = "honeycomb._native")]
pub struct NativeListener(Mutex<Option<Listener>>);

impl NativeListener {
    pub fn open(
        py: Python<'_>,
        structure: &Structure,
        kinds: u16,
        filter: Filter,
    ) -> PyResult<NativeListener> {
        let listener = py.detach(|| structure.listen(kinds, filter));
        Ok(NativeListener(Mutex::new(Some(checked(py, listener)?))))
    }
}

#[pymethods]
impl NativeListener {
    /// The next notification as a dictionary; None if `wait` seconds pass first.
    fn next<'py>(
        &self,
        py: Python<'py>,
        wait: Option<f64>,
    ) -> PyResult<Option<Bound<'py, PyDict>>> {
        let heard = wait_for(py, wait, |left| {
            // A thread that closes the listener must not wait long, so the lock is held only briefly.
            let step = left.min(Duration::from_millis(250));
            let mut listener = self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            match listener.as_mut() {
                Some(listener) => Ok(listener.next(step)?.map(Some)),
                None => Ok(Some(None)),
            }
        })?;
        match heard {
            None => Ok(None),
            Some(None) => Err(raise(py, "Closed", "the listener was closed")),
            Some(Some(notification)) => describe(py, &notification).map(Some),
        }
    }

    /// Ends the subscription.
    fn close(&self, py: Python<'_>) {
        py.detach(|| {
            drop(self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).take());
        });
    }
}

fn describe<'py>(py: Python<'py>, n: &Notification) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    let set = |op: &str, fields: &[(&str, u64)]| -> PyResult<()> {
        dict.set_item("op", op)?;
        for (name, value) in fields {
            dict.set_item(*name, value.into_bound_py_any(py)?)?;
        }
        Ok(())
    };
    match &n.heard {
        Heard::Append { offset, length } => {
            set("append", &[("offset", *offset), ("length", *length)])?;
        }
        Heard::Seal { size } => set("seal", &[("size", *size)])?,
        Heard::Data { items } => set("data", &[("items", *items)])?,
        Heard::Space { items } => set("space", &[("items", *items)])?,
        Heard::Close => set("close", &[])?,
        Heard::Put { key } => {
            set("put", &[])?;
            dict.set_item("key", PyBytes::new(py, key))?;
        }
        Heard::Delete { key } => {
            set("delete", &[])?;
            dict.set_item("key", PyBytes::new(py, key))?;
        }
        Heard::Gap { missed } => {
            set("gap", &[])?;
            dict.set_item("missed", *missed)?;
        }
    }
    dict.set_item("block", n.at.block.to_string())?;
    dict.set_item("number", n.number)?;
    Ok(dict)
}
