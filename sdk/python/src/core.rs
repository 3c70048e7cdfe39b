//! One core with its own runtime, and requests to its router, with no socket and no HTTP in between.
//! Never ended by being dropped: only `stop` ends it, since a fork's child has its memory but not its threads.
//! Invariant: when `stop` has returned, no sandbox, no thread and no private folder of it is left.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use axum::http::{HeaderName, HeaderValue, header};
use axum::response::Response;
use cellblock::app::LocalCore;
use cellblock::cli::logging::{self, Tracing};
use cellblock::settings::Settings;
use http_body_util::BodyExt;
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;
use tower::ServiceExt;

use crate::body::{Body, request_body};
use crate::settings::local_settings;
use crate::waiting::Surroundings;

/// Tasks get that long to end after their core has.
const RUNTIME_LIMIT: Duration = Duration::from_secs(2);

/// Status, headers, and the whole body or what it can be read from.
type Answer = (u16, Vec<(String, String)>, Py<PyAny>);

#[pyclass(frozen, module = "cellblock._native")]
pub struct Core {
    router: Router,
    surroundings: Arc<Surroundings>,
    owned: Mutex<Option<(Runtime, LocalCore)>>,
    #[pyo3(get)]
    work_root: PathBuf,
    #[pyo3(get)]
    lock_fd: i32,
}

#[pymethods]
impl Core {
    /// Raises ValueError for a bad setting, RuntimeError where no core can run.
    #[staticmethod]
    fn start(
        py: Python<'_>,
        settings: BTreeMap<String, String>,
        helper: PathBuf,
    ) -> PyResult<Self> {
        let (mut settings, work_root) = local_settings(&settings)?;
        settings.helper = helper;
        start_logging(&settings)?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .thread_name("cellblock")
            .enable_all()
            .build()?;
        let surroundings = Arc::new(Surroundings::new(runtime.handle().clone()));
        let started = surroundings.wait(py, None, LocalCore::start(settings, work_root));
        let started = started.and_then(|started| {
            started.map_err(|error| PyRuntimeError::new_err(format!("{error:#}")))
        });
        let local = match started {
            Ok(local) => local,
            Err(error) => {
                runtime.shutdown_background();
                return Err(error);
            }
        };
        Ok(Self {
            router: local.router(),
            surroundings,
            work_root: local.work_root().to_owned(),
            lock_fd: local.lock_fd(),
            owned: Mutex::new(Some((runtime, local))),
        })
    }

    /// One request. `whole`: the body comes as bytes, else as a `Body` to read from.
    #[expect(clippy::too_many_arguments, reason = "the parts of a request")]
    fn request(
        &self,
        py: Python<'_>,
        method: &str,
        target: &str,
        headers: Vec<(String, String)>,
        body: Option<&Bound<'_, PyAny>>,
        timeout: Option<f64>,
        whole: bool,
    ) -> PyResult<Answer> {
        let work = self.exchange(build(method, target, headers, body)?, whole);
        self.surroundings.wait(py, timeout, work)??.into_python(py)
    }

    /// As `request`, without waiting: `done` is called with the answer, or with the error, in a thread of the core's.
    fn request_soon(
        &self,
        method: &str,
        target: &str,
        headers: Vec<(String, String)>,
        body: Option<&Bound<'_, PyAny>>,
        whole: bool,
        done: Py<PyAny>,
    ) -> PyResult<Ticket> {
        let work = self.exchange(build(method, target, headers, body)?, whole);
        self.surroundings.check()?;
        let task = self.surroundings.runtime.spawn(async move {
            let exchanged = work.await;
            tell(&done, |py| exchanged?.into_python(py));
        });
        Ok(Ticket::new(task))
    }

    /// Ends it: sandboxes, tasks, threads. Whoever still waits for an answer gets ConnectionError.
    fn stop(&self, py: Python<'_>) {
        if !self.surroundings.is_ours() {
            return;
        }
        let owned = self
            .owned
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        let Some((runtime, local)) = owned else {
            return;
        };
        py.detach(|| {
            self.surroundings.stopping.cancel();
            let in_use = &self.surroundings.in_use;
            let _nobody_waits = in_use.write().unwrap_or_else(PoisonError::into_inner);
            runtime.block_on(local.end());
            runtime.shutdown_timeout(RUNTIME_LIMIT);
        });
    }
}

impl Core {
    fn exchange(
        &self,
        request: Request,
        whole: bool,
    ) -> impl Future<Output = PyResult<Exchanged>> + Send + use<> {
        let (router, surroundings) = (self.router.clone(), self.surroundings.clone());
        async move {
            let answer = match router.oneshot(request).await {
                Ok(answer) => answer,
                Err(never) => match never {},
            };
            Exchanged::new(answer, whole, surroundings).await
        }
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        let owned = self.owned.get_mut().unwrap_or_else(PoisonError::into_inner);
        std::mem::forget(owned.take());
    }
}

/// A request that goes on without its caller, who may give it up.
#[pyclass(frozen, module = "cellblock._native")]
pub struct Ticket {
    task: JoinHandle<()>,
}

impl Ticket {
    pub fn new(task: JoinHandle<()>) -> Self {
        Self { task }
    }
}

#[pymethods]
impl Ticket {
    /// Like a caller that hangs up.
    fn cancel(&self) {
        self.task.abort();
    }
}

/// Calls `done(value, None)` or `done(None, error)`, if there still is an interpreter to do so in.
pub fn tell<T>(done: &Py<PyAny>, value: impl FnOnce(Python<'_>) -> PyResult<T>)
where
    T: for<'py> IntoPyObject<'py>,
{
    Python::try_attach(|py| {
        // An event loop that is closed by now takes nothing; nobody waits for it then.
        let _taken = match value(py) {
            Ok(value) => done.call1(py, (value, py.None())),
            Err(error) => done.call1(py, (py.None(), error)),
        };
    });
}

/// An answer before it is Python's.
struct Exchanged {
    status: u16,
    headers: Vec<(String, String)>,
    body: AnswerBody,
}

enum AnswerBody {
    Whole(bytes::Bytes),
    Stream(Body),
}

impl Exchanged {
    async fn new(answer: Response, whole: bool, surroundings: Arc<Surroundings>) -> PyResult<Self> {
        let (parts, body) = answer.into_parts();
        let headers = parts.headers.iter();
        let headers = headers.map(|(name, value)| {
            let value = String::from_utf8_lossy(value.as_bytes()).into_owned();
            (name.as_str().to_owned(), value)
        });
        let body = match whole {
            true => {
                let gathered = body.collect().await;
                let gathered = gathered.map_err(|error| PyRuntimeError::new_err(error.to_string()));
                AnswerBody::Whole(gathered?.to_bytes())
            }
            false => AnswerBody::Stream(Body::new(body, surroundings)),
        };
        Ok(Self {
            status: parts.status.as_u16(),
            headers: headers.collect(),
            body,
        })
    }

    fn into_python(self, py: Python<'_>) -> PyResult<Answer> {
        let body = match self.body {
            AnswerBody::Whole(bytes) => PyBytes::new(py, &bytes).into_any().unbind(),
            AnswerBody::Stream(body) => Py::new(py, body)?.into_any(),
        };
        Ok((self.status, self.headers, body))
    }
}

fn build(
    method: &str,
    target: &str,
    headers: Vec<(String, String)>,
    body: Option<&Bound<'_, PyAny>>,
) -> PyResult<Request> {
    let invalid = |error: axum::http::Error| PyValueError::new_err(error.to_string());
    let request = Request::builder().method(method).uri(target);
    let mut request = request.body(request_body(body)?).map_err(invalid)?;
    let own = request.headers_mut();
    for (name, value) in headers {
        let name = HeaderName::try_from(name).map_err(|error| invalid(error.into()))?;
        own.insert(
            name,
            HeaderValue::try_from(value).map_err(|error| invalid(error.into()))?,
        );
    }
    own.insert(header::HOST, HeaderValue::from_static("localhost"));
    Ok(request)
}

/// Once per process: the first core's settings decide.
fn start_logging(settings: &Settings) -> PyResult<()> {
    static TRACING: Mutex<Option<Option<Tracing>>> = Mutex::new(None);
    let mut tracing = TRACING.lock().unwrap_or_else(PoisonError::into_inner);
    if tracing.is_none() {
        let started = logging::start(settings);
        *tracing = Some(started.map_err(|error| PyValueError::new_err(error.to_string()))?);
    }
    Ok(())
}
