//! MCP: the tools dialect for agents that speak the Model Context Protocol, and two tools more, over HTTP at `/mcp` and over stdio.
//! Never puts much base64 into a model's context. Invariant: every client has a sandbox of its own, which stays from call to call.

mod python;
mod schemas;

use std::sync::Arc;
use std::time::Duration;

use axum::http::request::Parts;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, Implementation,
    ListToolsResult, PaginatedRequestParams, ServerCapabilities, ServerConfig,
};
use rmcp::service::RequestContext;
use rmcp::transport::streamable_http_server::session::local::LocalSessionManager;
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use rmcp::{ErrorData, RoleServer, ServerHandler};
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::Shared;
use super::problem::Problem;
use super::tools::{Context, call_tool};
use crate::settings::MAX_TIMEOUT;

const MAX_BODY_BYTES: usize = 16 << 20;
/// A client may say which sandbox it means, whatever connection it comes by.
const SESSION_HEADER: &str = "x-cellblock-session";
const MCP_SESSION_HEADER: &str = "mcp-session-id";
/// They work in the sandbox of whoever calls.
const NEED_A_SESSION: [&str; 3] = ["run_python", "get_file_link", "sandbox_open"];
const NO_SESSION: &str =
    "this connection has no session: send the header X-Cellblock-Session with a name of your own";
const INSTRUCTIONS: &str = "Sandboxed Python and Linux with no network. run_python keeps variables and files from call to call, like a notebook; \
files you write to the working folder stay and can be handed to the user with get_file_link. The sandbox_* tools run programs and work on files in the same sandbox \
(sandbox_open first); sandbox_run uses a fresh one each time and keeps nothing. A sandbox that nobody uses for some minutes goes, and its variables and files with it: \
hand over what the user needs, and define things again if a name is suddenly unknown.";

/// One client's way to the core.
#[derive(Clone)]
pub struct Mcp {
    state: Shared,
    /// Who it is when the transport does not tell.
    client: Arc<str>,
}

pub type McpService = StreamableHttpService<Mcp, LocalSessionManager>;

/// The service at `/mcp`. Keys, hosts and origins are checked before it, as for every route.
pub fn service(state: &Shared) -> McpService {
    let state = state.clone();
    // rmcp forgets a session that is silent for five minutes; ours may be silent for as long as a sandbox lives or a cell runs.
    let mut sessions = LocalSessionManager::default();
    let silence = state.settings.sandbox.idle.max(MAX_TIMEOUT) + Duration::from_secs(60);
    sessions.session_config.keep_alive = Some(silence);
    let config = StreamableHttpServerConfig::default()
        .disable_allowed_hosts()
        .with_max_request_body_bytes(MAX_BODY_BYTES);
    StreamableHttpService::new(
        move || Ok(Mcp::new(&state, "default")),
        Arc::new(sessions),
        config,
    )
}

impl Mcp {
    pub fn new(state: &Shared, client: &str) -> Self {
        Self {
            state: state.clone(),
            client: client.into(),
        }
    }

    /// Each client is an agent run of its own.
    fn context(&self, request: &RequestContext<RoleServer>) -> Context {
        let client = match request.extensions.get::<Parts>() {
            None => Some(&*self.client),
            // Two clients that cannot be told apart must not share a sandbox by accident.
            Some(parts) => [SESSION_HEADER, MCP_SESSION_HEADER]
                .iter()
                .find_map(|name| parts.headers.get(*name)?.to_str().ok()),
        };
        Context {
            agent_run_id: client.map(|client| format!("mcp {client}")),
            ..Context::default()
        }
    }

    async fn call(
        &self,
        name: &str,
        context: &Context,
        input: Value,
        hang_up: CancellationToken,
    ) -> Result<CallToolResult, Problem> {
        match name {
            "run_python" => python::run(&self.state, context, input, hang_up).await,
            "get_file_link" => python::link(&self.state, context, input).await,
            _ => {
                let asked = input.clone();
                let answer = call_tool(&self.state, name, context, input, hang_up).await?;
                let answer = python::without_much_base64(&self.state, &asked, answer).await?;
                Ok(CallToolResult::structured(answer))
            }
        }
    }
}

impl ServerHandler for Mcp {
    fn get_info(&self) -> ServerConfig {
        ServerConfig::new(ServerCapabilities::builder().enable_tools().build())
            .with_server_info(Implementation::new("cellblock", env!("CARGO_PKG_VERSION")))
            .with_instructions(INSTRUCTIONS)
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        Ok(ListToolsResult::with_all_items(schemas::all()))
    }

    /// A tool that could not do its work says so to the model; only an unknown one is an error of the protocol.
    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        if !schemas::is_known(&request.name) {
            let text = format!("there is no tool {:?}", request.name);
            return Err(ErrorData::invalid_params(text, None));
        }
        let who = self.context(&context);
        let input = Value::Object(request.arguments.unwrap_or_default());
        let result = match self
            .call(&request.name, &who, input, context.ct.clone())
            .await
        {
            Ok(result) => result,
            Err(problem) => {
                problem.count();
                let mut text = problem.detail().to_owned();
                if who.agent_run_id.is_none() && NEED_A_SESSION.contains(&&*request.name) {
                    text = NO_SESSION.to_owned();
                }
                CallToolResult::error(vec![ContentBlock::text(text)])
            }
        };
        tracing::info!(tool = %request.name, failed = result.is_error, "mcp tool called");
        Ok(result.into())
    }
}
