//! Every setting of the service: its name, its default, what is allowed, what it is for.
//! Never reads anything but the given source. Invariant: a bad value stops the start with name, value and remedy,
//! and `.env.example` lists exactly what is read here (a test compares them).

mod reader;

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use reader::Reader;

use crate::policy::CommandPolicy;
use crate::sandbox::embedded::EmbeddedConfig;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BackendChoice {
    Auto,
    Docker,
    Embedded,
}

/// Whether each workspace is a file system of limited size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QuotaChoice {
    Auto,
    Hard,
    Soft,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    Text,
    Json,
}

#[derive(Clone)]
pub struct Settings {
    pub host: IpAddr,
    pub port: u16,
    pub api_key: Option<String>,
    pub work_root: PathBuf,
    pub deployment_id: Option<String>,
    pub worker_id: Option<String>,
    pub log_format: LogFormat,
    pub log_level: String,
    pub otlp_endpoint: Option<String>,
    pub s3: S3Settings,
    pub sandbox: SandboxSettings,
    pub files: FileSettings,
    pub dialects: DialectSettings,
    /// The binary that makes embedded sandboxes. No operator's choice: a core inside another program names the one it brings along.
    pub helper: PathBuf,
}

#[derive(Clone)]
pub struct S3Settings {
    pub endpoint_url: Option<String>,
    pub public_endpoint_url: Option<String>,
    pub access_key_id: Option<String>,
    pub secret_access_key: Option<String>,
    pub bucket: String,
    pub region: String,
    pub prefix_root: String,
    pub presign_expires: Duration,
    pub embedded_addr: SocketAddr,
    pub delete_on_cleanup: bool,
    pub delete_on_delete: bool,
    /// The embedded server whatever the environment has. No operator's choice: a core inside another program must not take that
    /// program's credentials.
    pub is_embedded: bool,
}

#[derive(Clone)]
pub struct SandboxSettings {
    pub backend: BackendChoice,
    pub docker: DockerSettings,
    pub pool_size: usize,
    pub ttl: Duration,
    pub idle: Duration,
    pub exec_timeout: Duration,
    pub reaper_interval: Duration,
    pub max_total: usize,
    pub queue_max: usize,
    pub preload: Vec<String>,
    pub cpus: f64,
    pub memory_bytes: u64,
    pub pids: u32,
    pub allow_network: bool,
}

#[derive(Clone)]
pub struct DialectSettings {
    pub step_timeout: Duration,
    pub thread_timeout_minutes: u64,
    pub max_file_bytes: u64,
    /// None if it is off.
    pub command_policy: Option<CommandPolicy>,
}

#[derive(Clone)]
pub struct DockerSettings {
    pub image: String,
    pub allowed_images: Vec<String>,
    pub runtime: Option<String>,
    pub work_root_host: Option<PathBuf>,
}

#[derive(Clone)]
pub struct FileSettings {
    pub max_upload_bytes: u64,
    pub max_output_bytes: usize,
    pub max_total_files: usize,
    pub max_workspace_bytes: u64,
    pub workspace_quota: QuotaChoice,
    pub min_free_disk_bytes: u64,
    pub allow_private_urls: bool,
}

/// One row of the settings table, as `.env.example` and the README show it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SettingInfo {
    pub name: &'static str,
    pub default: String,
    pub help: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}", .0.join("\n"))]
pub struct SettingsError(Vec<String>);

/// The longest a caller may ask a cell to run.
pub const MAX_TIMEOUT: Duration = Duration::from_secs(3600);
/// The longest that a session of the threads dialect may lie idle: a week.
pub const MAX_THREAD_MINUTES: u64 = 10_080;
const ALLOWED_COMMANDS: &str =
    "jq,awk,grep,sed,sort,uniq,head,tail,wc,cut,tr,cat,echo,date,find,ls,python3,python";
const FORBIDDEN_COMMANDS: &str = "rm,mv,dd,curl,wget,ssh,sudo";
/// What S3 allows for a presigned link.
pub const MAX_LINK_SECONDS: u64 = 604_800;

impl Settings {
    /// Reads `.env` in the current folder, then the environment, which wins.
    /// Also gives the names in `.env` that mean nothing here: most likely typing mistakes.
    pub fn load() -> Result<(Self, Vec<String>), SettingsError> {
        Self::load_with(BTreeMap::new())
    }

    /// As `load`; what the command line gave wins over both.
    pub fn load_with(
        given: BTreeMap<String, String>,
    ) -> Result<(Self, Vec<String>), SettingsError> {
        let mut source = read_env_file()?;
        let known: Vec<_> = Self::table().into_iter().map(|info| info.name).collect();
        let unknown = source
            .keys()
            .filter(|name| !known.contains(&name.as_str()))
            .cloned()
            .collect();
        source.extend(std::env::vars());
        source.extend(given);
        Ok((Self::from_source(&source)?, unknown))
    }

    pub fn from_source(source: &BTreeMap<String, String>) -> Result<Self, SettingsError> {
        let mut reader = Reader::new(source);
        let settings = read(&mut reader);
        if reader.problems.is_empty() {
            Ok(settings)
        } else {
            Err(SettingsError(reader.problems))
        }
    }

    /// Every setting the code reads, in order, with its default.
    pub fn table() -> Vec<SettingInfo> {
        let source = BTreeMap::new();
        let mut reader = Reader::new(&source);
        read(&mut reader);
        reader.seen
    }

    pub fn uses_embedded_s3(&self) -> bool {
        let is_elsewhere = self.s3.endpoint_url.is_some()
            || self.s3.access_key_id.is_some()
            || aws_credentials_present();
        self.s3.is_embedded || !is_elsewhere
    }
}

/// Where AWS's own tools would look first; the SDK itself does the reading.
fn aws_credentials_present() -> bool {
    [
        "AWS_ACCESS_KEY_ID",
        "AWS_PROFILE",
        "AWS_WEB_IDENTITY_TOKEN_FILE",
        "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    ]
    .iter()
    .any(|name| std::env::var_os(name).is_some())
}

fn read_env_file() -> Result<BTreeMap<String, String>, SettingsError> {
    let entries = match dotenvy::from_filename_iter(".env") {
        Ok(entries) => entries,
        Err(error) if error.not_found() => return Ok(BTreeMap::new()),
        Err(error) => return Err(SettingsError(vec![format!(".env cannot be read: {error}")])),
    };
    entries.collect::<Result<_, _>>().map_err(|error| {
        SettingsError(vec![format!(
            ".env has a line that is not NAME=value: {error}"
        )])
    })
}

fn read(r: &mut Reader<'_>) -> Settings {
    let host = r.value(
        "HOST",
        "127.0.0.1",
        "Address to listen on; other than loopback only with SANDBOX_API_KEY",
        "an IP address such as 127.0.0.1 or 0.0.0.0",
    );
    let port = r.integer(
        "PORT",
        8000,
        0,
        65_535,
        "Port to listen on; 0 picks a free one",
    );
    let api_key = r.optional("SANDBOX_API_KEY", "Key that callers send as X-API-Key or as a Bearer token; without it only loopback is served");
    let settings = Settings {
        host,
        port: port as u16,
        api_key,
        work_root: PathBuf::from(r.text(
            "WORK_ROOT",
            "./sandboxes",
            "Folder for workspaces, sandbox state and the embedded S3 store",
        )),
        deployment_id: r.identifier(
            "DEPLOYMENT_ID",
            "Keeps the sandboxes of several services on one engine apart; one per WORK_ROOT by default. Nodes that share it need a WORKER_ID each",
        ),
        worker_id: r.optional(
            "WORKER_ID",
            "Name of this node in /health, logs and labels; the host name by default",
        ),
        log_format: r.choice(
            "LOG_FORMAT",
            &[("text", LogFormat::Text), ("json", LogFormat::Json)],
            "How log lines are written",
        ),
        log_level: r.text(
            "LOG_LEVEL",
            "info",
            "Least severity that is logged: error, warn, info, debug, trace, or a tracing filter",
        ),
        otlp_endpoint: r.url(
            "OTEL_EXPORTER_OTLP_ENDPOINT",
            "Collector that gets a trace of each request (OTLP over HTTP), such as http://127.0.0.1:4318",
        ),
        s3: read_s3(r),
        sandbox: read_sandbox(r),
        files: read_files(r),
        dialects: read_dialects(r),
        helper: EmbeddedConfig::own_binary(),
    };
    if settings.api_key.is_none() && !settings.host.is_loopback() {
        r.problem(format!(
            "HOST={} is not loopback and SANDBOX_API_KEY is not set: set a key, or use HOST=127.0.0.1",
            settings.host
        ));
    }
    if settings.s3.access_key_id.is_some() != settings.s3.secret_access_key.is_some() {
        r.problem(
            "S3_ACCESS_KEY_ID and S3_SECRET_ACCESS_KEY go together: set both or neither".to_owned(),
        );
    }
    settings
}

fn read_s3(r: &mut Reader<'_>) -> S3Settings {
    S3Settings {
        endpoint_url: r.url("S3_ENDPOINT_URL", "S3 service to use, such as a MinIO; empty: AWS if there are credentials, else the embedded server"),
        public_endpoint_url: r.url("S3_PUBLIC_ENDPOINT_URL", "Address that presigned links start with, when callers reach S3 by another one"),
        access_key_id: r.optional("S3_ACCESS_KEY_ID", "Access key; without one and without an endpoint the embedded server makes its own"),
        secret_access_key: r.optional("S3_SECRET_ACCESS_KEY", "Secret key that belongs to it"),
        bucket: r.text("S3_BUCKET", "sandbox", "Bucket for artifacts; made if it is missing"),
        region: r.text("S3_REGION", "us-east-1", "Region of the bucket"),
        prefix_root: r.prefix("S3_PREFIX_ROOT", "sandboxes", "First part of every key"),
        presign_expires: Duration::from_secs(r.integer("PRESIGN_EXPIRES_SECONDS", 300, 1, MAX_LINK_SECONDS, "How long a presigned link works unless the caller says otherwise")),
        embedded_addr: r.value("EMBEDDED_S3_ADDR", "127.0.0.1:9000", "Where the embedded S3 server listens", "an address and port such as 127.0.0.1:9000"),
        delete_on_cleanup: r.switch("DELETE_S3_ON_CLEANUP", true, "Delete a session's stored files when it is stopped or expires"),
        delete_on_delete: r.switch("DELETE_S3_ON_DELETE", false, "Delete a file from S3 too when a caller deletes it from the workspace"),
        is_embedded: false,
    }
}

fn read_sandbox(r: &mut Reader<'_>) -> SandboxSettings {
    SandboxSettings {
        backend: r.choice(
            "SANDBOX_BACKEND",
            &[
                ("auto", BackendChoice::Auto),
                ("docker", BackendChoice::Docker),
                ("embedded", BackendChoice::Embedded),
            ],
            "How sandboxes are made: docker, embedded, or auto for docker where an engine answers and has the image",
        ),
        docker: read_docker(r),
        pool_size: r.integer(
            "SANDBOX_POOL_SIZE",
            2,
            0,
            10_000,
            "Sandboxes kept ready for new sessions; they count as alive but make room when it is needed",
        ) as usize,
        ttl: Duration::from_secs(r.integer(
            "SANDBOX_TTL_SECONDS",
            1800,
            1,
            31_536_000,
            "Longest life of a session",
        )),
        idle: Duration::from_secs(r.integer(
            "SANDBOX_IDLE_SECONDS",
            600,
            1,
            31_536_000,
            "A session that nobody used for so long is removed",
        )),
        exec_timeout: Duration::from_secs(r.integer(
            "SANDBOX_EXEC_TIMEOUT_SECONDS",
            10,
            1,
            MAX_TIMEOUT.as_secs(),
            "Time limit of a cell unless the caller says otherwise",
        )),
        reaper_interval: Duration::from_secs(r.integer(
            "SANDBOX_REAPER_INTERVAL",
            15,
            1,
            3600,
            "Seconds between two looks for expired sessions and orphans",
        )),
        max_total: r.integer(
            "SANDBOX_MAX_TOTAL",
            50,
            1,
            100_000,
            "Most sandboxes alive at once",
        ) as usize,
        queue_max: r.integer(
            "SANDBOX_QUEUE_MAX",
            16,
            0,
            10_000,
            "Most cells that may wait for one session",
        ) as usize,
        preload: r.modules(
            "SANDBOX_PRELOAD",
            "Python modules imported before the first cell, separated by commas",
        ),
        cpus: r.decimal(
            "SANDBOX_CPUS",
            "1",
            0.05,
            1024.0,
            "Processor time of one sandbox, in cores",
        ),
        memory_bytes: r.integer(
            "SANDBOX_MEMORY_MB",
            512,
            64,
            1_048_576,
            "Memory of one sandbox",
        ) << 20,
        pids: r.integer(
            "SANDBOX_PIDS",
            128,
            16,
            32_768,
            "Most processes and threads of one sandbox",
        ) as u32,
        allow_network: r.switch(
            "SANDBOX_ALLOW_NETWORK",
            false,
            "Let sessions of the tools dialect ask for a network (docker backend only); it reaches whatever the engine's bridge reaches",
        ),
    }
}

fn read_dialects(r: &mut Reader<'_>) -> DialectSettings {
    let enforced = r.choice(
        "COMMAND_POLICY",
        &[("enforce", true), ("off", false)],
        "Whether commands of the threads dialect must be on the list of allowed ones",
    );
    let allowed = r.words(
        "COMMAND_POLICY_ALLOWED",
        ALLOWED_COMMANDS,
        "Programs that commands of the threads dialect may start, besides shell builtins that start none",
    );
    let forbidden = r.words(
        "COMMAND_POLICY_FORBIDDEN",
        FORBIDDEN_COMMANDS,
        "Programs that they may never start",
    );
    DialectSettings {
        command_policy: enforced.then(|| CommandPolicy::new(allowed, forbidden)),
        thread_timeout_minutes: r.integer(
            "SESSION_TIMEOUT_MINUTES",
            30,
            1,
            MAX_THREAD_MINUTES,
            "A session of the threads dialect that nobody used for so long is removed, unless its creator says otherwise",
        ),
        max_file_bytes: r.integer(
            "MAX_FILE_SIZE_MB",
            100,
            1,
            1_048_576,
            "Largest file that the threads dialect takes in",
        ) << 20,
        step_timeout: Duration::from_secs(r.integer(
            "SBS_STEP_TIMEOUT_SEC",
            30,
            1,
            MAX_TIMEOUT.as_secs(),
            "Time limit of a step of the sessions dialect",
        )),
    }
}

fn read_docker(r: &mut Reader<'_>) -> DockerSettings {
    DockerSettings {
        image: r.text(
            "SANDBOX_IMAGE",
            "cellblock-sandbox",
            "Image of sandboxes with the docker backend; ./ctl.sh image builds it",
        ),
        allowed_images: r.list(
            "SANDBOX_ALLOWED_IMAGES",
            "Other images that a session may ask for, separated by commas; each must be built on SANDBOX_IMAGE",
        ),
        runtime: r.optional(
            "SANDBOX_RUNTIME",
            "OCI runtime that the engine uses for sandboxes, such as runsc or kata; the engine's default if empty",
        ),
        work_root_host: r
            .optional(
                "WORK_ROOT_HOST",
                "WORK_ROOT as the engine's host sees it, when this service runs in a container",
            )
            .map(PathBuf::from),
    }
}

fn read_files(r: &mut Reader<'_>) -> FileSettings {
    FileSettings {
        max_upload_bytes: r.integer(
            "MAX_UPLOAD_BYTES",
            52_428_800,
            1,
            1 << 40,
            "Largest file that is taken in, uploaded or from a URL",
        ),
        max_output_bytes: r.integer(
            "MAX_OUTPUT_BYTES",
            200_000,
            1024,
            16_777_216,
            "Most output of one cell; the rest is cut with a mark",
        ) as usize,
        max_total_files: r.integer(
            "MAX_TOTAL_FILES",
            1000,
            1,
            1_000_000,
            "Most files of one workspace",
        ) as usize,
        max_workspace_bytes: r.integer(
            "MAX_WORKSPACE_SIZE_MB",
            500,
            1,
            1_048_576,
            "Largest size of one workspace",
        ) << 20,
        workspace_quota: r.choice(
            "WORKSPACE_QUOTA",
            &[
                ("auto", QuotaChoice::Auto),
                ("hard", QuotaChoice::Hard),
                ("soft", QuotaChoice::Soft),
            ],
            "How that is enforced: hard (a file system of that size for each, needs root and loop devices), soft (a look twice a second), or auto for hard where it works",
        ),
        min_free_disk_bytes: r.integer(
            "MIN_FREE_DISK_MB",
            512,
            0,
            1_048_576,
            "With less room than this on the disk of WORK_ROOT no new work begins (507); 0 turns that off",
        ) << 20,
        allow_private_urls: r.switch(
            "ALLOW_PRIVATE_URLS",
            false,
            "Let upload-urls fetch from private and loopback addresses",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(pairs: &[(&str, &str)]) -> Result<Settings, SettingsError> {
        let source = pairs
            .iter()
            .map(|(k, v)| (k.to_string(), v.to_string()))
            .collect();
        Settings::from_source(&source)
    }

    #[test]
    fn the_env_example_lists_exactly_the_settings_the_code_reads() {
        let text = include_str!("../../.env.example");
        let listed: Vec<(String, String)> = text
            .lines()
            .filter(|line| !line.starts_with("# ") && line.contains('='))
            .map(|line| line.trim_start_matches('#').split_once('=').unwrap())
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect();
        let read: Vec<_> = Settings::table()
            .into_iter()
            .map(|info| (info.name.to_owned(), info.default))
            .collect();
        assert_eq!(listed, read);
    }

    #[test]
    fn the_readme_has_a_row_for_every_setting() {
        let readme = include_str!("../../README.md");
        for info in Settings::table() {
            assert!(
                readme.contains(&format!("| `{}` |", info.name)),
                "README lacks {}",
                info.name
            );
        }
    }

    #[test]
    fn a_bad_value_is_refused_with_its_name_its_value_and_what_is_allowed() {
        let Err(error) = settings(&[("PORT", "eighty"), ("SANDBOX_BACKEND", "podman")]) else {
            panic!("accepted")
        };
        let text = error.to_string();
        for part in [
            "PORT",
            "eighty",
            "0 to 65535",
            "SANDBOX_BACKEND",
            "podman",
            "auto, docker, embedded",
        ] {
            assert!(text.contains(part), "{text}");
        }
    }

    #[test]
    fn another_address_than_loopback_needs_a_key() {
        assert!(settings(&[("HOST", "0.0.0.0")]).is_err());
        assert!(settings(&[("HOST", "0.0.0.0"), ("SANDBOX_API_KEY", "k")]).is_ok());
        assert!(settings(&[("HOST", "::1")]).is_ok());
    }

    #[test]
    fn an_empty_value_means_the_default() {
        assert_eq!(settings(&[("PORT", "")]).unwrap().port, 8000);
        assert_eq!(settings(&[("SANDBOX_API_KEY", " ")]).unwrap().api_key, None);
    }
}
