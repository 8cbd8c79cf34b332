//! Operations that an event loop awaits: a native thread carries them out together.

use crate::batch::{self, exception};
use crate::buffer::Data;
use crate::calls::{KvCalls, kv};
use crate::convert::checked;
use crate::face::fork_generation;
use honeycomb_client::{Answer, Driver};
use pyo3::prelude::*;
use pyo3::types::PyList;
use std::os::fd::AsRawFd;

/// Carries out operations on the stores of one client, and tells by a descriptor when there are answers.
#[pyclass(frozen, module = "honeycomb._native")]
pub struct NativeDriver {
    driver: Option<Driver>,
    made_in: u64,
}

impl NativeDriver {
    fn driver(&self) -> &Driver {
        self.driver.as_ref().expect("it is there until it is dropped")
    }
}

fn given<'py>(value: Option<&Bound<'py, PyAny>>) -> PyResult<Option<Data<'py>>> {
    value.map(|value| Data::named("values", value)).transpose()
}

#[pymethods]
impl NativeDriver {
    /// One for the client of this store.
    #[new]
    fn new(store: &Bound<'_, KvCalls>) -> PyResult<NativeDriver> {
        let driver = Driver::new(&kv(store)?.get().kv)?;
        Ok(NativeDriver { driver: Some(driver), made_in: fork_generation() })
    }

    fn fileno(&self) -> i32 {
        self.driver().descriptor().as_raw_fd()
    }

    /// Takes an operation (its kind as `_batch.py` has it), which `wake` sends. False, and nothing taken,
    /// for one that has to be made alone.
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

    /// Sends what was taken.
    fn wake(&self) -> PyResult<()> {
        Ok(self.driver().wake()?)
    }

    /// The answers that have come: pairs of a ticket and what its operation answered, its exception, or
    /// `NotImplemented` for one that has to be made alone.
    fn take<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let answers = PyList::empty(py);
        for (ticket, answer) in self.driver().take() {
            let answer = match answer {
                Answer::Alone => py.NotImplemented(),
                Answer::Done(Ok(done)) => batch::done(py, done)?,
                Answer::Done(Err(e)) => exception(py, &e),
            };
            answers.append((ticket, answer))?;
        }
        Ok(answers)
    }
}

impl Drop for NativeDriver {
    fn drop(&mut self) {
        if self.made_in != fork_generation() {
            // Its thread is the parent's, and may hold the lock here for ever.
            std::mem::forget(self.driver.take());
        }
    }
}
