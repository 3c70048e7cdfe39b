//! Bodies in both directions: a request's from an iterator of Python's, an answer's piece by piece to Python.
//! Never gathers a file in memory. Invariant: an answer that Python lets go of is hung up on, like a closed connection.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::HttpBody;
use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::Frame;
use pyo3::exceptions::PyConnectionError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyIterator};
use tokio::sync::Mutex;

use crate::core::{Ticket, tell};
use crate::waiting::Surroundings;

/// What a request carries: nothing, bytes, or an iterable of bytes.
pub fn request_body(given: Option<&Bound<'_, PyAny>>) -> PyResult<axum::body::Body> {
    let Some(given) = given else {
        return Ok(axum::body::Body::empty());
    };
    if let Ok(bytes) = given.cast::<PyBytes>() {
        return Ok(Bytes::copy_from_slice(bytes.as_bytes()).into());
    }
    Ok(axum::body::Body::new(Chunks(given.try_iter()?.unbind())))
}

struct Chunks(Py<PyIterator>);

impl HttpBody for Chunks {
    type Data = Bytes;
    type Error = PyErr;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, PyErr>>> {
        Poll::Ready(Python::attach(|py| {
            let next = self.0.bind(py).clone().next()?;
            let chunk = next.and_then(|chunk| {
                let bytes = chunk.cast_into::<PyBytes>()?;
                Ok(Frame::data(Bytes::copy_from_slice(bytes.as_bytes())))
            });
            Some(chunk)
        }))
    }
}

/// The body of an answer that is read as it comes.
#[pyclass(frozen, module = "cellblock._native")]
pub struct Body {
    // None once it was let go.
    stream: Arc<Mutex<Option<axum::body::Body>>>,
    surroundings: Arc<Surroundings>,
}

impl Body {
    pub fn new(body: axum::body::Body, surroundings: Arc<Surroundings>) -> Self {
        Self {
            stream: Arc::new(Mutex::new(Some(body))),
            surroundings,
        }
    }
}

async fn next_chunk(stream: Arc<Mutex<Option<axum::body::Body>>>) -> PyResult<Option<Bytes>> {
    let mut stream = stream.lock().await;
    loop {
        let Some(body) = stream.as_mut() else {
            return Ok(None);
        };
        match body.frame().await {
            None => return Ok(None),
            Some(Err(error)) => return Err(PyConnectionError::new_err(error.to_string())),
            Some(Ok(frame)) => {
                if let Ok(data) = frame.into_data() {
                    return Ok(Some(data));
                }
            }
        }
    }
}

#[pymethods]
impl Body {
    /// The next piece, or None at the end.
    #[pyo3(signature = (timeout=None))]
    fn next<'py>(
        &self,
        py: Python<'py>,
        timeout: Option<f64>,
    ) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let work = next_chunk(self.stream.clone());
        let chunk = self.surroundings.wait(py, timeout, work)??;
        Ok(chunk.map(|chunk| PyBytes::new(py, &chunk)))
    }

    /// As `next`; `done` is called with it, or with the error, in a thread of the core's.
    fn next_soon(&self, done: Py<PyAny>) -> PyResult<Ticket> {
        self.surroundings.check()?;
        let work = next_chunk(self.stream.clone());
        let task = self.surroundings.runtime.spawn(async move {
            let chunk = work.await;
            tell(&done, |py| {
                Ok(chunk?.map(|chunk| PyBytes::new(py, &chunk).unbind()))
            });
        });
        Ok(Ticket::new(task))
    }

    /// Hangs up. Somebody who is just reading finishes first; a reader that was given up needs a moment to let go.
    fn close(&self) {
        if !self.surroundings.is_ours() {
            return;
        }
        let _inside = self.surroundings.runtime.enter();
        match self.stream.try_lock() {
            Ok(mut stream) => drop(stream.take()),
            Err(_) => {
                let stream = self.stream.clone();
                tokio::spawn(async move { drop(stream.lock().await.take()) });
            }
        }
    }
}

impl Drop for Body {
    fn drop(&mut self) {
        match self.surroundings.is_ours() {
            true => self.close(),
            // What belongs to threads that are not there must not be touched, not even to free it.
            false => std::mem::forget(self.stream.clone()),
        }
    }
}
