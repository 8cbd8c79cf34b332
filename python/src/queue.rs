//! Python's interface to queues.

use crate::buffer::Data;
use crate::client::Closed;
use crate::convert::{checked, raise};
use crate::waiting::{NativeListener, filter, until, wait_for};
use honeycomb_client::{Delivery, Error, Queue};
use honeycomb_wire::messages::MapEntry;
use honeycomb_wire::{Field, Status};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::time::Duration;

/// An open queue. Safe to share between threads; every call releases the GIL.
#[pyclass(frozen, module = "honeycomb._native")]
pub struct NativeQueue {
    /// The queue.
    pub queue: Queue,
    /// Whether its client was closed.
    pub closed: Closed,
}

/// A reserved item, and the data to acknowledge it, give it back or extend it.
#[pyclass(frozen, module = "honeycomb._native")]
pub struct NativeDelivery(Delivery);

#[pymethods]
impl NativeDelivery {
    /// A delivery that another process received, from the `state` of that delivery.
    #[new]
    fn new(py: Python<'_>, item: &[u8], at: &[u8], number: u64, deliveries: u32) -> PyResult<Self> {
        let entry = MapEntry::decode(at).map_err(|e| {
            raise(py, "InvalidArgument", &format!("the pickled reservation is not valid: {e}"))
        })?;
        Ok(NativeDelivery(Delivery { item: item.to_vec(), entry, number, deliveries }))
    }

    /// The arguments that create the same delivery in another process.
    fn state<'py>(&self, py: Python<'py>) -> GroupReport<'py> {
        let Delivery { item, entry, number, deliveries } = &self.0;
        (PyBytes::new(py, item), PyBytes::new(py, &entry.encode()), *number, *deliveries)
    }

    #[getter]
    fn item<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.0.item)
    }

    #[getter]
    fn deliveries(&self) -> u32 {
        self.0.deliveries
    }
}

type GroupReport<'py> = (Bound<'py, PyBytes>, Bound<'py, PyBytes>, u64, u32);
type ItemList<'py> = Vec<Bound<'py, PyBytes>>;

fn bytes<'py>(py: Python<'py>, items: &[Vec<u8>]) -> ItemList<'py> {
    items.iter().map(|item| PyBytes::new(py, item)).collect()
}

fn some<T>(items: Vec<T>) -> Option<Vec<T>> {
    (!items.is_empty()).then_some(items)
}

/// Retries `put` until it succeeds or the timeout passes, and then raises `QueueFull`.
pub fn put_waiting(
    py: Python<'_>,
    wait: Option<f64>,
    mut put: impl FnMut(Duration) -> Result<(), Error> + Send,
) -> PyResult<()> {
    let mut full = None;
    let done = wait_for(py, wait, |left| match put(left) {
        Err(e) if e.status == Status::QueueFull => {
            full = Some(e);
            Ok(None)
        }
        other => other.map(Some),
    })?;
    match (done, full) {
        (Some(()), _) => Ok(()),
        (None, Some(e)) => Err(raise(py, e.status.name(), &e.message)),
        (None, None) => Err(raise(py, "QueueFull", "no room became free in time")),
    }
}

/// Takes items and waits up to `wait` seconds for the first. Returns no items if none arrived.
pub fn take_waiting<T: Send>(
    py: Python<'_>,
    wait: Option<f64>,
    mut take: impl FnMut(Duration) -> Result<Vec<T>, Error> + Send,
) -> PyResult<Vec<T>> {
    Ok(wait_for(py, wait, |left| Ok(some(take(left)?)))?.unwrap_or_default())
}

#[pymethods]
impl NativeQueue {
    #[getter]
    fn item_limit(&self) -> usize {
        self.queue.item_limit()
    }

    /// The bounds, in items and bytes; 0 for none.
    #[getter]
    fn bounds(&self) -> (u64, u64) {
        self.queue.bounds()
    }

    /// Puts items. Returns how many were put, and the error if not all were.
    fn put_many(
        &self,
        py: Python<'_>,
        items: Vec<Data<'_>>,
        wait: Option<f64>,
    ) -> PyResult<(usize, Option<PyErr>)> {
        let slices: Vec<&[u8]> = items.iter().map(Data::slice).collect();
        let mut done = 0;
        let failed =
            put_waiting(py, wait, |left| match self.queue.put_many(&slices[done..], left) {
                Ok(()) => {
                    done = slices.len();
                    Ok(())
                }
                Err((put, e)) => {
                    done += put;
                    Err(e)
                }
            });
        Ok((done, failed.err()))
    }

    /// Takes up to `items` items, waiting up to `wait` seconds for the first.
    fn get<'py>(
        &self,
        py: Python<'py>,
        items: usize,
        wait: Option<f64>,
    ) -> PyResult<ItemList<'py>> {
        let found = take_waiting(py, wait, |left| self.queue.get_many(items, left))?;
        Ok(bytes(py, &found))
    }

    /// Reserves up to `items` items for `lease` seconds.
    fn reserve(
        &self,
        py: Python<'_>,
        items: usize,
        lease: f64,
        wait: Option<f64>,
    ) -> PyResult<Vec<NativeDelivery>> {
        let lease = seconds(py, lease)?;
        let found = take_waiting(py, wait, |left| self.queue.reserve(items, lease, left))?;
        Ok(found.into_iter().map(NativeDelivery).collect())
    }

    /// Completes reservations. `action` is 0 to acknowledge, 1 to give back, 2 to extend to `lease` seconds
    /// from now. Returns for each whether it was still held.
    fn settle(
        &self,
        py: Python<'_>,
        action: u8,
        deliveries: Vec<PyRef<'_, NativeDelivery>>,
        lease: f64,
    ) -> PyResult<Vec<bool>> {
        let lease = seconds(py, lease)?;
        let deliveries: Vec<&Delivery> = deliveries.iter().map(|d| &d.0).collect();
        let settled = py.detach(|| match action {
            0 => self.queue.acknowledge(&deliveries),
            1 => self.queue.give_back(&deliveries),
            _ => self.queue.extend(&deliveries, lease),
        });
        checked(py, settled)
    }

    /// The first items, which stay in the queue.
    fn peek<'py>(&self, py: Python<'py>, items: usize) -> PyResult<ItemList<'py>> {
        let peeked = py.detach(|| self.queue.peek(items));
        Ok(bytes(py, &checked(py, peeked)?))
    }

    /// Items, bytes, reserved, closed.
    fn counts(&self, py: Python<'_>) -> PyResult<(u64, u64, u64, bool)> {
        let counts = py.detach(|| self.queue.counts());
        let counts = checked(py, counts)?;
        Ok((counts.items, counts.bytes, counts.reserved, counts.closed))
    }

    /// Ends the queue.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let closed = py.detach(|| self.queue.close());
        checked(py, closed)
    }

    /// Waits until the queue is closed. Returns false if `wait` seconds pass first.
    fn wait_closed(&self, py: Python<'_>, wait: Option<f64>) -> PyResult<bool> {
        until(py, wait, |left| self.queue.wait_closed(left))
    }

    /// A listener for kinds of changes.
    fn listen(&self, py: Python<'_>, kinds: u16) -> PyResult<NativeListener> {
        NativeListener::open(py, self.queue.structure(), kinds, filter(None, None))
    }
}

fn seconds(py: Python<'_>, seconds: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(seconds).map_err(|e| {
        let text = format!("a reservation cannot last {seconds} seconds: {e}");
        raise(py, "InvalidArgument", &text)
    })
}
