//! Every route of every dialect, on one screen, and what all of them share: ids, keys, errors, limits.
//! Holds no logic: a dialect parses, asks the core, and shapes the answer.
//! Invariant: no handler runs before the request has an id and, where one is needed, the right key.

mod auth;
mod drain;
mod finish_anyway;
mod health;
mod input;
pub mod mcp;
mod openapi;
mod problem;
mod request_log;
mod sessions;
mod threads;
mod tools;
mod v1;

use std::sync::Arc;
use std::time::Instant;

use axum::Router;
use axum::middleware::{from_fn, from_fn_with_state};
use axum::routing::{delete, get, post};

use crate::policy::judge::Judge;
use crate::session::Core;
use crate::settings::Settings;

/// What handlers need.
pub struct AppState {
    pub core: Arc<Core>,
    pub settings: Settings,
    /// None where the command policy is off.
    pub judge: Option<Arc<Judge>>,
    pub worker_id: String,
    pub s3_kind: &'static str,
    pub started: Instant,
}

pub type Shared = Arc<AppState>;

pub fn router(state: Shared) -> Router {
    let guarded = Router::new()
        .route("/v1/sandbox/reset", post(v1::sandbox::reset))
        .route("/v1/sandbox/interrupt", post(v1::sandbox::interrupt))
        .route("/v1/sandbox/stop", post(v1::sandbox::stop))
        .route("/v1/sandbox/status", get(v1::sandbox::status))
        .route("/v1/sandboxes", get(v1::sandbox::list))
        .route("/v1/files/upload-urls", post(v1::files::upload_urls))
        .route("/v1/files/upload", post(v1::upload::upload))
        .route("/v1/files/download", get(v1::download::download))
        .route("/v1/files/delete", post(v1::files::delete))
        .route("/v1/files/list", get(v1::files::list))
        .route("/v1/files/download-url", get(v1::files::download_url))
        .route("/metrics", get(health::metrics))
        .route("/v1/tools", post(tools::list))
        .route(
            "/v1/workflows/{run_id}/complete",
            post(tools::complete_workflow),
        )
        .route("/create_session", post(threads::create_session))
        .route("/get_session", get(threads::get_session))
        .route("/upload_file", post(threads::files::upload))
        .route("/download_file", post(threads::files::download))
        .route("/list_files", get(threads::files::list))
        .route("/cleanup", post(threads::cleanup))
        .route("/sessions", post(sessions::create))
        .route("/sessions/{id}", delete(sessions::close))
        // What was begun is finished, whoever hangs up. An execution sees to that itself, since a hang-up interrupts it.
        .layer(from_fn(finish_anyway::finish_anyway))
        .route("/v1/execute", post(v1::execute::execute))
        .route("/execute", post(threads::execute))
        .route("/v1/tools/{name}", post(tools::call))
        .route("/sessions/{id}/step", post(sessions::step))
        .route_service("/mcp", mcp::service(&state))
        .fallback(problem::no_such_route)
        .method_not_allowed_fallback(problem::method_not_allowed)
        .layer(from_fn(drain::drain_unread_body))
        .layer(from_fn_with_state(state.clone(), auth::require_key));
    Router::new()
        .route("/health", get(health::health))
        .route("/openapi.json", get(openapi::document))
        .route("/docs", get(openapi::page))
        .merge(guarded)
        .layer(axum::extract::DefaultBodyLimit::disable())
        .layer(from_fn(request_log::with_request_id))
        .with_state(state)
}
