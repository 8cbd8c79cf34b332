//! Conversion of batches: operations from Python's tuples, and results to Python's objects.

use crate::buffer::Data;
use crate::convert::raise;
use honeycomb_client::{Accumulated, Done, Error, Number, Swap, TopItem};
use honeycomb_wire::batch::BatchOp;
use honeycomb_wire::stored::Function;
use pyo3::IntoPyObjectExt;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};

/// Kinds above this are accumulates; the difference is the number of the function.
const ACCUMULATE: u8 = 16;

/// One operation as `_batch.py` passes it: its kind, the key, and its operands.
pub type BatchOperation<'py> = (u8, Data<'py>, Option<Data<'py>>, Option<Data<'py>>);

/// The function with this number.
pub fn function_of(number: u8) -> PyResult<Function> {
    let found = Function::ALL.into_iter().find(|function| *function as u8 == number);
    found.ok_or_else(|| PyValueError::new_err(format!("no function has the number {number}")))
}

/// The operations of Python's tuples.
pub fn ops<'a>(asked: &'a [BatchOperation<'_>]) -> PyResult<Vec<BatchOp<'a>>> {
    asked.iter().map(op).collect()
}

/// The operation of one of Python's tuples.
pub fn op<'a>((kind, key, first, second): &'a BatchOperation<'_>) -> PyResult<BatchOp<'a>> {
    let key = key.slice();
    let brought = |data: &'a Option<Data<'_>>| match data {
        Some(data) => Ok(data.slice()),
        None => Err(PyValueError::new_err(format!("operation {kind} needs a value"))),
    };
    Ok(match kind {
        0 => BatchOp::Get { key },
        1 => BatchOp::Put { key, value: brought(first)? },
        2 => BatchOp::Insert { key, value: brought(first)? },
        3 => BatchOp::Delete { key },
        4 => {
            let expected = first.as_ref().map(Data::slice);
            BatchOp::Swap { key, expected, new: brought(second)? }
        }
        5 => BatchOp::Set { key, value: brought(first)? },
        kind if *kind > ACCUMULATE => {
            let function = function_of(kind - ACCUMULATE)?;
            BatchOp::Accumulate { key, function, operand: brought(first)? }
        }
        kind => return Err(PyValueError::new_err(format!("no operation has the number {kind}"))),
    })
}

/// The exception for an error, as an object.
pub fn exception(py: Python<'_>, e: &Error) -> Py<PyAny> {
    raise(py, e.status.name(), &e.message).into_value(py).into_any()
}

/// Results in order, with errors as exceptions.
pub fn listed<'py, T>(
    py: Python<'py>,
    results: Vec<Result<T, Error>>,
    shown: impl Fn(T) -> PyResult<Py<PyAny>>,
) -> PyResult<Bound<'py, PyList>> {
    let list = PyList::empty(py);
    for result in results {
        match result {
            Ok(value) => list.append(shown(value)?)?,
            Err(e) => list.append(exception(py, &e))?,
        }
    }
    Ok(list)
}

/// Bytes, or None.
pub fn bytes_or_none(py: Python<'_>, value: Option<Vec<u8>>) -> Py<PyAny> {
    match value {
        Some(value) => PyBytes::new(py, &value).into_any().unbind(),
        None => py.None(),
    }
}

/// The result of one operation.
pub fn done(py: Python<'_>, done: Done) -> PyResult<Py<PyAny>> {
    match done {
        Done::Read(value) => Ok(bytes_or_none(py, value)),
        Done::Stored(yes) | Done::Deleted(yes) => yes.into_py_any(py),
        Done::Set => Ok(py.None()),
        Done::Swapped(swap) => {
            let (swapped, found) = match swap {
                Swap::Done => (true, None),
                Swap::Found(found) => (false, found),
            };
            (swapped, bytes_or_none(py, found)).into_py_any(py)
        }
        Done::Combined(value) => accumulated(py, value),
    }
}

/// The new value after an accumulate.
pub fn accumulated(py: Python<'_>, value: Accumulated) -> PyResult<Py<PyAny>> {
    match value {
        Accumulated::Integer(n) => n.into_py_any(py),
        Accumulated::Float(n) => n.into_py_any(py),
        Accumulated::Length(n) | Accumulated::Items(n) => n.into_py_any(py),
        Accumulated::Top(items) => top(py, &items),
    }
}

/// A top list: pairs of score and item, best first.
pub fn top(py: Python<'_>, items: &[TopItem]) -> PyResult<Py<PyAny>> {
    let list = PyList::empty(py);
    for TopItem { score, item } in items {
        list.append((*score, PyBytes::new(py, item)))?;
    }
    Ok(list.into_any().unbind())
}

/// A stored number, or None.
pub fn number(py: Python<'_>, number: Option<Number>) -> PyResult<Py<PyAny>> {
    match number {
        Some(Number::Integer(n)) => n.into_py_any(py),
        Some(Number::Float(n)) => n.into_py_any(py),
        None => Ok(py.None()),
    }
}
