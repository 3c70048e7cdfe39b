//! The module `cellblock._native`: the core of Cellblock for the Python package around it.
//! Never holds logic of its own: settings in, requests in, answers out; what they mean is Python's and the core's.
//! Invariant: the interpreter lock is never held while something is waited for.

mod body;
mod core;
mod settings;
mod waiting;

use pyo3::prelude::*;

#[pymodule(gil_used = true)]
mod _native {
    #[pymodule_export]
    use super::body::Body;
    #[pymodule_export]
    use super::core::{Core, Ticket};
    #[pymodule_export]
    use super::settings::{check_settings, refuse_command, setting_names};
}
