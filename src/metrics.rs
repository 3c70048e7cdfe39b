//! What the service counts, for Prometheus: sessions, executions, commands, sync, refusals.
//! Never names a user, a session or a file. Invariant: labels come from a fixed set of words, so their number is bounded.

use std::sync::LazyLock;
use std::time::Duration;

use prometheus::{
    Encoder, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, Opts,
    Registry, TextEncoder,
};

/// From a warm cell to the longest one.
const SECONDS: [f64; 14] = [
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.25, 1.0, 2.5, 10.0, 30.0, 120.0, 3600.0,
];
const LIFETIME_SECONDS: [f64; 8] = [1.0, 10.0, 60.0, 300.0, 1800.0, 7200.0, 86_400.0, 604_800.0];

pub struct Metrics {
    registry: Registry,
    pub sessions_created: IntCounterVec,
    pub sessions_reused: IntCounterVec,
    pub sessions_expired: IntCounter,
    pub session_lifetime: Histogram,
    pub sandboxes_from_pool: IntCounter,
    pub sandboxes_cold: IntCounter,
    executions: IntCounterVec,
    execution_seconds: HistogramVec,
    commands: IntCounterVec,
    command_seconds: HistogramVec,
    pub synced_bytes: IntCounter,
    pub synced_files: IntCounter,
    pub refusals: IntCounterVec,
    sessions_active: IntGauge,
    pool_size: IntGauge,
    pool_available: IntGauge,
}

pub static METRICS: LazyLock<Metrics> = LazyLock::new(Metrics::new);

impl Metrics {
    fn new() -> Self {
        let registry = Registry::new();
        let counter = |name: &str, help: &str| {
            let counter = IntCounter::new(name, help).expect("the names are valid");
            register(&registry, counter)
        };
        let counters = |name: &str, help: &str, labels: &[&str]| {
            let counters =
                IntCounterVec::new(Opts::new(name, help), labels).expect("the names are valid");
            register(&registry, counters)
        };
        let gauge = |name: &str, help: &str| {
            register(
                &registry,
                IntGauge::new(name, help).expect("the names are valid"),
            )
        };
        let histograms = |name: &str, help: &str| {
            let options = HistogramOpts::new(name, help).buckets(SECONDS.to_vec());
            let histograms =
                HistogramVec::new(options, &["dialect", "outcome"]).expect("the names are valid");
            register(&registry, histograms)
        };
        let lifetime = HistogramOpts::new(
            "cellblock_session_lifetime_seconds",
            "How long sessions lived",
        )
        .buckets(LIFETIME_SECONDS.to_vec());
        Self {
            sessions_created: counters(
                "cellblock_sessions_created_total",
                "Sessions opened",
                &["dialect"],
            ),
            sessions_reused: counters(
                "cellblock_sessions_reused_total",
                "Uses of a session that was open already",
                &["dialect"],
            ),
            sessions_expired: counter(
                "cellblock_sessions_expired_total",
                "Sessions whose time was up",
            ),
            session_lifetime: register(
                &registry,
                Histogram::with_opts(lifetime).expect("the names are valid"),
            ),
            sandboxes_from_pool: counter(
                "cellblock_sandboxes_from_pool_total",
                "Sessions that took a waiting sandbox",
            ),
            sandboxes_cold: counter(
                "cellblock_sandboxes_cold_total",
                "Sandboxes made for a session that waited for it",
            ),
            executions: counters(
                "cellblock_executions_total",
                "Cells run",
                &["dialect", "outcome"],
            ),
            execution_seconds: histograms("cellblock_execution_seconds", "Time that cells took"),
            commands: counters(
                "cellblock_commands_total",
                "Programs run",
                &["dialect", "outcome"],
            ),
            command_seconds: histograms("cellblock_command_seconds", "Time that programs took"),
            synced_bytes: counter(
                "cellblock_synced_bytes_total",
                "Bytes of workspace files stored",
            ),
            synced_files: counter("cellblock_synced_files_total", "Workspace files stored"),
            refusals: counters(
                "cellblock_refusals_total",
                "Requests refused, by the code of the answer",
                &["code"],
            ),
            sessions_active: gauge("cellblock_sessions_active", "Sessions that are open"),
            pool_size: gauge("cellblock_pool_size", "Sandboxes that should wait"),
            pool_available: gauge("cellblock_pool_available", "Sandboxes that wait"),
            registry,
        }
    }

    pub fn execution(&self, dialect: &str, outcome: &str, took: Duration) {
        self.executions.with_label_values(&[dialect, outcome]).inc();
        let seconds = self
            .execution_seconds
            .with_label_values(&[dialect, outcome]);
        seconds.observe(took.as_secs_f64());
    }

    pub fn command(&self, dialect: &str, outcome: &str, took: Duration) {
        self.commands.with_label_values(&[dialect, outcome]).inc();
        let seconds = self.command_seconds.with_label_values(&[dialect, outcome]);
        seconds.observe(took.as_secs_f64());
    }

    /// Everything as Prometheus reads it.
    pub fn text(&self, sessions: usize, (pool_size, pool_available): (usize, usize)) -> String {
        self.sessions_active.set(sessions as i64);
        self.pool_size.set(pool_size as i64);
        self.pool_available.set(pool_available as i64);
        let mut text = Vec::new();
        let encoded = TextEncoder::new().encode(&self.registry.gather(), &mut text);
        if let Err(error) = encoded {
            tracing::error!(%error, "metrics could not be written");
        }
        String::from_utf8_lossy(&text).into_owned()
    }
}

fn register<M: prometheus::core::Collector + Clone + 'static>(registry: &Registry, metric: M) -> M {
    registry
        .register(Box::new(metric.clone()))
        .expect("each name is registered once");
    metric
}
