//! Python's interface to structures of custom kinds.

use crate::buffer::{BytesRoom, Data};
use crate::client::Closed;
use crate::convert::{checked, raise_error};
use crate::waiting::wait_for;
use honeycomb_client::{Answered, Ask, Custom, Room};
use honeycomb_types::{KindSpec, OperationSpec};
use honeycomb_wire::Status;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::time::Duration;

/// An open structure of a custom kind. Safe to share between threads; every call releases the GIL.
#[pyclass(frozen, module = "honeycomb._native")]
pub struct NativeCustom {
    /// The structure.
    pub custom: Custom,
    /// Whether its client was closed.
    pub closed: Closed,
}

/// Value, arguments, payload, position at which the replying block begins.
type CustomReply<'py> = (u64, Bound<'py, PyBytes>, Bound<'py, PyBytes>, u64);
/// Name, number, verbs, route, whether it mutates, takes a payload, waits, and returns a position.
type CustomOperation = (String, u8, u16, u8, bool, bool, bool, bool);
/// Code, name, router, operations.
pub type CustomKind = (u8, String, u8, Vec<CustomOperation>);

fn operation(spec: &OperationSpec) -> CustomOperation {
    let OperationSpec { number, name, verbs, route, mutates, payload, waits, positional, .. } =
        spec;
    (name.clone(), *number, verbs.0, *route as u8, *mutates, *payload, *waits, *positional)
}

/// A kind, as its servers describe it.
pub fn kind(spec: &KindSpec) -> CustomKind {
    let operations = spec.operations.iter().map(operation).collect();
    (spec.kind.code(), spec.name.clone(), spec.router as u8, operations)
}

fn reply(py: Python<'_>, answered: Answered) -> CustomReply<'_> {
    let Answered { value, args, payload, start } = answered;
    let mut room = BytesRoom::default();
    if !payload.is_empty() {
        room.room(payload.len()).copy_from_slice(&payload);
    }
    (value, PyBytes::new(py, &args), room.finish(py), start)
}

#[pymethods]
impl NativeCustom {
    /// The structure's kind.
    #[getter]
    fn kind(&self) -> CustomKind {
        kind(self.custom.spec())
    }

    /// Runs an operation on one block. An operation that can wait does so for up to `wait` seconds.
    #[allow(clippy::too_many_arguments)]
    fn call<'py>(
        &self,
        py: Python<'py>,
        operation: &str,
        payload: Data<'_>,
        args: Data<'_>,
        position: Option<u64>,
        key: Option<Data<'_>>,
        wait: Option<f64>,
    ) -> PyResult<CustomReply<'py>> {
        let (args, payload) = (args.slice(), payload.slice());
        let key = key.as_ref().map(Data::slice);
        let ask = Ask { args, payload, position, key, wait: Duration::ZERO };
        let waits = self.custom.spec().operation(operation).is_some_and(|spec| spec.waits);
        if !waits && wait == Some(0.0) {
            let answered = py.detach(|| self.custom.call(operation, ask));
            return Ok(reply(py, checked(py, answered)?));
        }
        let mut nothing = None;
        let answered =
            wait_for(py, wait, |wait| match self.custom.call(operation, Ask { wait, ..ask }) {
                Err(e) if e.status == Status::NotYet => {
                    nothing = Some(e);
                    Ok(None)
                }
                other => other.map(Some),
            })?;
        match (answered, nothing) {
            (Some(answered), _) => Ok(reply(py, answered)),
            (None, Some(e)) => Err(raise_error(py, &e)),
            (None, None) => unreachable!("without a result there is an error"),
        }
    }

    /// Runs an operation on every block, or on every block up to the block of a position.
    fn call_each<'py>(
        &self,
        py: Python<'py>,
        operation: &str,
        payload: Data<'_>,
        args: Data<'_>,
        position: Option<u64>,
    ) -> PyResult<Vec<CustomReply<'py>>> {
        let (args, payload) = (args.slice(), payload.slice());
        let ask = Ask { args, payload, position, ..Ask::default() };
        let answers = py.detach(|| self.custom.call_each(operation, ask));
        Ok(checked(py, answers)?.into_iter().map(|answered| reply(py, answered)).collect())
    }
}
