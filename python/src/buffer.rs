//! Python's bytes-likes as slices, bytes objects that are filled in place, and mapped files as buffers. The bindings' only
//! `unsafe`, each use with its proof.
#![allow(unsafe_code)]

use honeycomb_client::{FileView, Room};
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::ffi::c_int;
use std::sync::Arc;

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

/// Bytes of a mapped file that Python reads in place: all of them, or one run. It keeps the file mapped.
#[pyclass(frozen, module = "honeycomb._native")]
pub struct NativeRun {
    view: Arc<FileView>,
    /// Which run; `None` for the whole file, which is one then.
    run: Option<usize>,
}

impl NativeRun {
    /// The whole file, when it is one run of bytes.
    pub fn whole(view: &Arc<FileView>) -> Option<NativeRun> {
        view.contiguous().map(|_| NativeRun { view: view.clone(), run: None })
    }

    /// One after the other.
    pub fn each(view: &Arc<FileView>) -> Vec<NativeRun> {
        let runs = 0..view.segments().len();
        runs.map(|run| NativeRun { view: view.clone(), run: Some(run) }).collect()
    }

    fn bytes(&self) -> &[u8] {
        match self.run {
            None => self.view.contiguous().expect("looked at when it was made"),
            Some(run) => self.view.segments()[run],
        }
    }
}

#[pymethods]
impl NativeRun {
    /// The buffer protocol. `BufferError` for one that is to be written.
    ///
    /// # Safety
    /// Called by Python, with a `Py_buffer` to fill.
    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        buffer: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let bytes = slf.get().bytes();
        let (start, length) = (bytes.as_ptr().cast_mut().cast(), bytes.len() as isize);
        // SAFETY: `buffer` is Python's to be filled. The bytes stay where they are and what they are
        // while this object lives (`FileView`), of which the buffer takes a reference; they are given
        // out as read-only, so that nobody writes through the pointer.
        let filled =
            unsafe { ffi::PyBuffer_FillInfo(buffer, slf.as_ptr(), start, length, 1, flags) };
        match filled {
            0 => Ok(()),
            _ => Err(PyErr::fetch(slf.py())),
        }
    }
}
