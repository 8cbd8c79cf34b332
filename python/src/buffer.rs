//! Python's bytes-likes as slices, and bytes objects that are filled in place. The bindings' only
//! `unsafe`, each use with its proof.
#![allow(unsafe_code)]

use honeycomb_client::Room;
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyBufferError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

/// Bytes that a caller handed in, without a copy.
pub enum Data<'py> {
    /// A bytes object: immutable.
    Bytes(Bound<'py, PyBytes>),
    /// Anything else with the buffer protocol.
    Buffer(PyBuffer<u8>),
}

impl<'py> FromPyObject<'_, 'py> for Data<'py> {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        if let Ok(bytes) = object.cast::<PyBytes>() {
            return Ok(Data::Bytes(bytes.to_owned()));
        }
        let view = object.py().import("builtins")?.getattr("memoryview")?.call1((object,))?;
        // Bytes of whatever the items are: an array of numbers is stored as its memory.
        let view = view.call_method1("cast", ("B",))?;
        let buffer = PyBuffer::<u8>::get(&view)?;
        if !buffer.is_c_contiguous() {
            return Err(PyBufferError::new_err("the buffer is not contiguous"));
        }
        Ok(Data::Buffer(buffer))
    }
}

impl Data<'_> {
    /// The bytes.
    pub fn slice(&self) -> &[u8] {
        match self {
            Data::Bytes(bytes) => bytes.as_bytes(),
            // SAFETY: the buffer is contiguous and its exporter keeps the memory in place while
            // the view is held, which is as long as `self`. Another thread that writes into it
            // during the call sends torn bytes, as with any write(2) from a shared buffer.
            Data::Buffer(buffer) => unsafe {
                std::slice::from_raw_parts(buffer.buf_ptr().cast::<u8>(), buffer.len_bytes())
            },
        }
    }
}

/// A caller's buffer to be written.
pub struct Target(PyBuffer<u8>);

impl<'py> FromPyObject<'_, 'py> for Target {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        let view = object.py().import("builtins")?.getattr("memoryview")?.call1((object,))?;
        let view = view.call_method1("cast", ("B",))?;
        let buffer = PyBuffer::<u8>::get(&view)?;
        if buffer.readonly() || !buffer.is_c_contiguous() {
            return Err(PyBufferError::new_err("the buffer is read-only or not contiguous"));
        }
        Ok(Target(buffer))
    }
}

impl Target {
    /// The bytes.
    pub fn slice_mut(&mut self) -> &mut [u8] {
        // SAFETY: the buffer is writable and contiguous (checked), its memory stays in place while
        // the view is held, and `&mut self` gives out one slice at a time. Python code that reads
        // it meanwhile sees bytes in any order, as with any read(2) into a shared buffer.
        unsafe { std::slice::from_raw_parts_mut(self.0.buf_ptr().cast::<u8>(), self.0.len_bytes()) }
    }
}

/// A bytes object that is made when the length of a value is known, and filled by the network.
#[derive(Default)]
pub struct BytesRoom(Option<Py<PyBytes>>);

impl BytesRoom {
    /// The object; empty bytes when nothing was asked for.
    pub fn finish(self, py: Python<'_>) -> Bound<'_, PyBytes> {
        match self.0 {
            Some(bytes) => bytes.into_bound(py),
            None => PyBytes::new(py, &[]),
        }
    }
}

impl Room for BytesRoom {
    fn room(&mut self, length: usize) -> &mut [u8] {
        let pointer = Python::attach(|py| {
            let bytes = PyBytes::new_with(py, length, |_| Ok(()))
                .expect("memory for a value can be allocated");
            let pointer = bytes.as_bytes().as_ptr().cast_mut();
            self.0 = Some(bytes.unbind());
            pointer
        });
        // SAFETY: the object was just made with `length` bytes of memory of its own, and this is
        // the only reference to it until `finish`, which needs `self` back: nobody else can see
        // the bytes while they are written. Python never moves an object.
        unsafe { std::slice::from_raw_parts_mut(pointer, length) }
    }
}
