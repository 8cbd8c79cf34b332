//! Operations that an event loop awaits. A native thread runs them in batches.

use crate::batch::{self, exception};
use crate::buffer::Data;
use crate::calls::{KvCalls, kv};
use crate::convert::checked;
use crate::face::fork_generation;
use honeycomb_client::{Driver, OperationOutcome};
use pyo3::prelude::*;
use pyo3::types::PyList;
use std::os::fd::AsRawFd;

/// Runs operations on the stores of one client. A descriptor becomes readable when there are results.
#[pyclass(frozen, module = "honeycomb._native")]
pub struct NativeDriver {
    driver: Option<Driver>,
    made_in: u64,
}

impl NativeDriver {
    fn driver(&self) -> &Driver {
        self.driver.as_ref().expect("only `drop` takes it")
    }
}

fn given<'py>(value: Option<&Bound<'py, PyAny>>) -> PyResult<Option<Data<'py>>> {
    value.map(|value| Data::named("values", value)).transpose()
}

#[pymethods]
impl NativeDriver {
    /// Creates a driver for the client of this store.
    #[new]
    fn new(store: &Bound<'_, KvCalls>) -> PyResult<NativeDriver> {
        let driver = Driver::new(&kv(store)?.get().kv)?;
        Ok(NativeDriver { driver: Some(driver), made_in: fork_generation() })
    }

    fn fileno(&self) -> i32 {
        self.driver().descriptor().as_raw_fd()
    }

    /// Queues an operation (its kind is one of `_batch.py`), which `wake` sends. Returns false, and queues
    /// nothing, if the operation cannot be batched.
    #[pyo3(signature = (store, ticket, kind, key, first = None, second = None))]
    fn ask(
        &self,
        store: &Bound<'_, KvCalls>,
        ticket: u64,
        kind: u8,
        key: &Bound<'_, PyAny>,
        first: Option<&Bound<'_, PyAny>>,
        second: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<bool> {
        let store = kv(store)?;
        let (first, second) = (given(first)?, given(second)?);
        let asked = (kind, Data::key(key)?, first, second);
        let kv = &store.get().kv;
        let taken = self.driver().serves(kv).then(|| -> PyResult<bool> {
            checked(key.py(), self.driver().ask(kv, batch::op(&asked)?, ticket))
        });
        taken.unwrap_or(Ok(false))
    }

    /// Sends the queued operations.
    fn wake(&self) -> PyResult<()> {
        Ok(self.driver().wake()?)
    }

    /// The results received so far: pairs of a ticket and the result of its operation, its exception, or
    /// `NotImplemented` if the operation cannot be batched.
    fn take<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let answers = PyList::empty(py);
        for (ticket, answer) in self.driver().take() {
            let answer = match answer {
                OperationOutcome::Alone => py.NotImplemented(),
                OperationOutcome::Done(Ok(done)) => batch::done(py, done)?,
                OperationOutcome::Done(Err(e)) => exception(py, &e),
            };
            answers.append((ticket, answer))?;
        }
        Ok(answers)
    }
}

impl Drop for NativeDriver {
    fn drop(&mut self) {
        if self.made_in != fork_generation() {
            // The driver's thread exists only in the parent, and may have held the lock during the fork.
            std::mem::forget(self.driver.take());
        }
    }
}
