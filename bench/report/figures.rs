//! What was measured: figures by work and contender, and the statistics behind them. Pure.
//! Never measures and never formats. Invariant: one figure per work and contender, all of one run.

use std::time::Duration;

/// Who does the work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Contender {
    Embedded,
    Docker,
    RawSocket,
    Ipykernel,
    KernelGateway,
    DockerExec,
    Autogen,
    LlmSandbox,
    DockerRun,
    Libcontainer,
    PlainSdk,
}

/// The two ways in which Cellblock itself takes part.
pub const BACKENDS: [Contender; 2] = [Contender::Embedded, Contender::Docker];

impl Contender {
    pub fn name(self) -> &'static str {
        match self {
            Contender::Embedded => "Cellblock, embedded",
            Contender::Docker => "Cellblock, docker",
            Contender::RawSocket => "raw Unix-socket REPL",
            Contender::Ipykernel => "ipykernel over ZMQ",
            Contender::KernelGateway => "jupyter_kernel_gateway",
            Contender::DockerExec => "`docker exec` design",
            Contender::Autogen => "AutoGen, Docker executor",
            Contender::LlmSandbox => "llm-sandbox",
            Contender::DockerRun => "`docker run`",
            Contender::Libcontainer => "libcontainer alone",
            Contender::PlainSdk => "`aws-sdk-s3` alone",
        }
    }
}

/// What is done. The order is the order of the tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Work {
    Warm,
    Print,
    Artifact,
    Program,
    UnchangedFiles,
    Reset,
    Cold,
    Pool,
    PoolPandas,
    CrowdRate,
    CrowdTime,
    SandboxMemory,
    ServiceMemory,
    SyncMany,
    SyncLarge,
    RestartServes,
    RestartAnswers,
    AdoptServes,
    AdoptAnswers,
    Beside(Noise),
    /// The same without the time that those who served it were ready and had no core.
    BesideOnCore(Noise),
}

/// What the neighbours of a quiet session do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Noise {
    Nobody,
    Forks,
    Memory,
    Output,
    Disk,
    All,
}

/// How a figure is to be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    Seconds,
    PerSecond,
    Bytes,
    BytesPerSecond,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Figure {
    pub work: Work,
    pub contender: Contender,
    pub unit: Unit,
    pub p50: f64,
    /// Only where there are enough samples for a tail.
    pub p99: Option<f64>,
    pub count: usize,
}

#[derive(Debug, Default)]
pub struct Results {
    pub figures: Vec<Figure>,
    /// Who could not take part, and why.
    pub left_out: Vec<String>,
}

impl Results {
    pub fn add(&mut self, work: Work, contender: Contender, unit: Unit, samples: &[f64]) {
        let Some(p50) = quantile(samples, 0.5) else {
            return;
        };
        let new = Figure {
            work,
            contender,
            unit,
            p50,
            p99: quantile(samples, 0.99).filter(|_| samples.len() >= TAIL_COUNT),
            count: samples.len(),
        };
        let same = |figure: &&mut Figure| (figure.work, figure.contender) == (work, contender);
        match self.figures.iter_mut().find(same) {
            Some(figure) => *figure = new,
            None => self.figures.push(new),
        }
    }

    pub fn add_times(&mut self, work: Work, contender: Contender, times: &[Duration]) {
        let seconds: Vec<f64> = times.iter().map(Duration::as_secs_f64).collect();
        self.add(work, contender, Unit::Seconds, &seconds);
    }

    pub fn get(&self, work: Work, contender: Contender) -> Option<&Figure> {
        let same = |figure: &&Figure| figure.work == work && figure.contender == contender;
        self.figures.iter().find(same)
    }

    pub fn p50(&self, work: Work, contender: Contender) -> Option<f64> {
        self.get(work, contender).map(|figure| figure.p50)
    }
}

/// Fewer samples have no 99th percentile worth the name; theirs would be the largest.
pub const TAIL_COUNT: usize = 20;

/// The sample at that part of the sorted row (nearest rank); None for no samples.
pub fn quantile(samples: &[f64], part: f64) -> Option<f64> {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    let last = sorted.len().checked_sub(1)?;
    Some(sorted[(last as f64 * part).round() as usize])
}
