//! Log lines to standard error, and spans to a collector (OTLP over HTTP) if one is named.
//! Never logs code, output, keys or queries: those who log see to that. Invariant: a collector that is down costs spans, nothing else.

use std::io::IsTerminal;

use anyhow::Context;
use opentelemetry::trace::TracerProvider;
use opentelemetry_otlp::{SpanExporter, WithExportConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::SdkTracerProvider;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, fmt};

use crate::settings::{LogFormat, Settings};

/// Sends the spans that are left when it is dropped.
pub struct Tracing {
    provider: SdkTracerProvider,
}

impl Drop for Tracing {
    fn drop(&mut self) {
        let _collector_is_gone = self.provider.shutdown();
    }
}

pub fn start(settings: &Settings) -> anyhow::Result<Option<Tracing>> {
    let filter = EnvFilter::builder().parse(directives(&settings.log_level)).map_err(|error| {
        anyhow::anyhow!("LOG_LEVEL={:?} is not allowed: use error, warn, info, debug, trace or a filter ({error})", settings.log_level)
    })?;
    let lines = fmt::layer()
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal());
    let lines = match settings.log_format {
        LogFormat::Text => lines.with_target(false).boxed(),
        LogFormat::Json => lines
            .json()
            .flatten_event(true)
            .with_span_list(false)
            .boxed(),
    };
    let tracing = settings
        .otlp_endpoint
        .as_deref()
        .map(exporter)
        .transpose()?;
    let spans = tracing.as_ref().map(|tracing| {
        tracing_opentelemetry::layer()
            .with_tracer(tracing.provider.tracer("cellblock"))
            .with_filter(EnvFilter::new("off,cellblock=debug"))
    });
    tracing_subscriber::registry()
        .with(lines.with_filter(filter))
        .with(spans)
        .try_init()
        .context("something in this process logs already")?;
    Ok(tracing)
}

/// A plain word is about this service; what its libraries have to say at that level would drown it.
fn directives(level: &str) -> String {
    match level.chars().all(|c| c.is_ascii_alphabetic()) {
        true => format!("warn,s3s=off,cellblock={level}"),
        false => level.to_owned(),
    }
}

fn exporter(endpoint: &str) -> anyhow::Result<Tracing> {
    let exporter = SpanExporter::builder()
        .with_http()
        .with_endpoint(format!("{}/v1/traces", endpoint.trim_end_matches('/')))
        .build()
        .context("OTEL_EXPORTER_OTLP_ENDPOINT cannot be used")?;
    let provider = SdkTracerProvider::builder()
        .with_batch_exporter(exporter)
        .with_resource(Resource::builder().with_service_name("cellblock").build())
        .build();
    Ok(Tracing { provider })
}
