//! The tests of the benchmark's pure parts. They stand here because `compare` itself has no test harness: it is run, not tested.
#![allow(dead_code, reason = "the benchmark uses what its tests do not")]

mod report;

mod figures {
    use std::time::Duration;

    use crate::report::figures::*;

    #[test]
    fn a_quantile_is_a_sample_by_rank_whatever_the_order() {
        let samples: Vec<f64> = (0..=100).rev().map(f64::from).collect();
        assert_eq!(quantile(&samples, 0.5), Some(50.0));
        assert_eq!(quantile(&samples, 0.99), Some(99.0));
        assert_eq!(quantile(&[7.0], 0.99), Some(7.0));
        assert_eq!(quantile(&[], 0.5), None);
    }

    #[test]
    fn no_samples_make_no_figure() {
        let mut results = Results::default();
        results.add_times(Work::Warm, Contender::Ipykernel, &[]);
        assert_eq!(results.p50(Work::Warm, Contender::Ipykernel), None);
    }

    #[test]
    fn a_tail_needs_samples() {
        let mut results = Results::default();
        let one = Duration::from_millis(1);
        results.add_times(Work::Warm, Contender::Docker, &[one; TAIL_COUNT - 1]);
        results.add_times(Work::Warm, Contender::Embedded, &[one; TAIL_COUNT]);
        let p99 = |contender| results.get(Work::Warm, contender).and_then(|f| f.p99);
        assert_eq!(p99(Contender::Docker), None);
        assert_eq!(p99(Contender::Embedded), Some(0.001));
    }

    #[test]
    fn a_second_measurement_replaces_the_first() {
        let mut results = Results::default();
        results.add(Work::CrowdRate, Contender::Docker, Unit::PerSecond, &[1.0]);
        results.add(Work::CrowdRate, Contender::Docker, Unit::PerSecond, &[2.0]);
        assert_eq!(results.figures.len(), 1);
        assert_eq!(results.p50(Work::CrowdRate, Contender::Docker), Some(2.0));
    }
}

mod aims {
    use crate::report::aims::*;
    use crate::report::figures::{Contender, Results, Unit, Work};

    fn warm(own: f64, raw: f64) -> Results {
        let mut results = Results::default();
        let unit = Unit::Seconds;
        results.add(Work::Warm, Contender::Embedded, unit, &[own]);
        results.add(Work::Warm, Contender::RawSocket, unit, &[raw]);
        results
    }

    fn line(results: &Results, about: &str) -> String {
        let text = verdicts(results);
        let found = text.lines().find(|line| line.contains(about));
        found.expect("every aim has a line").to_owned()
    }

    #[test]
    fn a_bound_includes_its_limit() {
        assert!(Bound::AtMost(3.0).is_met_by(3.0) && !Bound::AtMost(3.0).is_met_by(3.01));
        assert!(Bound::AtLeast(10.0).is_met_by(10.0) && !Bound::AtLeast(10.0).is_met_by(9.99));
    }

    #[test]
    fn a_verdict_follows_from_the_ratio_of_the_run() {
        let about = "3× the raw socket";
        let met = line(&warm(120e-6, 50e-6), about);
        assert!(met.contains("| 2.4×: met | not measured |"), "{met}");
        let missed = line(&warm(200e-6, 50e-6), about);
        assert!(missed.contains("| 4.0×: **not met** |"), "{missed}");
    }

    #[test]
    fn what_was_not_measured_is_never_met() {
        let text = verdicts(&Results::default());
        assert!(!text.contains(": met"), "{text}");
        assert_eq!(text.lines().count(), AIMS.len() + 2);
    }

    #[test]
    fn a_missing_tail_is_not_a_short_one() {
        let mut results = Results::default();
        results.add(
            Work::CrowdTime,
            Contender::Docker,
            Unit::Seconds,
            &[1.0, 2.0],
        );
        let shown = line(&results, "p99 at most");
        assert!(shown.ends_with("| not measured | not measured |"));
    }

    #[test]
    fn an_aim_of_one_backend_says_nothing_of_the_other() {
        let mut results = warm(1.0, 1.0);
        let unit = Unit::Seconds;
        results.add(Work::Cold, Contender::Embedded, unit, &[0.040]);
        results.add(Work::Cold, Contender::Libcontainer, unit, &[0.005]);
        let shown = line(&results, "libcontainer");
        assert!(shown.ends_with("| 8.0×: met | – |"), "{shown}");
    }
}

mod table {
    use crate::report::figures::{Contender, Results, Unit, Work};
    use crate::report::table::*;

    #[test]
    fn only_what_is_between_the_markers_changes() {
        let document = format!("# Top\n\n{BEGIN}\nold\n{END}\n\nprose\n");
        let written = replaced(&document, "new").expect("it has both markers");
        assert_eq!(
            written,
            format!("# Top\n\n{BEGIN}\n\nnew\n\n{END}\n\nprose\n")
        );
        assert_eq!(replaced(&written, "new"), Some(written));
    }

    #[test]
    fn a_document_without_both_markers_is_left_alone() {
        assert_eq!(replaced("text", "new"), None);
        assert_eq!(replaced(&format!("{BEGIN} text"), "new"), None);
        assert_eq!(replaced(&format!("{END} {BEGIN}"), "new"), None);
    }

    #[test]
    fn the_document_of_this_project_has_its_markers() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/PERFORMANCE.md");
        let document = std::fs::read_to_string(path).expect("the document is there");
        assert!(replaced(&document, "new").is_some());
    }

    #[test]
    fn values_are_written_in_the_unit_that_fits() {
        assert_eq!(seconds(0.000_338), "338 µs");
        assert_eq!(seconds(0.000_999_9), "1.00 ms");
        assert_eq!(seconds(1.5), "1.50 s");
        assert_eq!(bytes(12_300.0), "12 kB");
        assert_eq!(bytes(12_300_000.0), "12.3 MB");
        assert_eq!(
            [ratio(0.5), ratio(2.44), ratio(300.2)],
            ["0.50×", "2.4×", "300×"]
        );
    }

    #[test]
    fn a_table_names_each_contender_with_its_ratio() {
        let mut results = Results::default();
        for (contender, value) in [(Contender::Embedded, 1e-3), (Contender::Ipykernel, 4e-3)] {
            results.add(Work::Warm, contender, Unit::Seconds, &[value]);
        }
        let text = tables(&results);
        assert!(text.contains("### Warm execute"));
        assert!(
            text.contains("| ipykernel over ZMQ | 4.00 ms | – | 1 | 4.0× |"),
            "{text}"
        );
        assert!(!text.contains("### Reset"));
    }
}

mod picture {
    use crate::report::figures::{Contender, Results, Unit, Work};
    use crate::report::picture::*;

    fn results() -> Results {
        let mut results = Results::default();
        for (contender, value) in [
            (Contender::DockerExec, 60e-3),
            (Contender::Embedded, 200e-6),
            (Contender::RawSocket, 50e-6),
        ] {
            results.add(Work::Warm, contender, Unit::Seconds, &[value]);
        }
        results
    }

    fn widths(svg: &str) -> Vec<f64> {
        let bars = svg.lines().filter(|line| line.starts_with("<rect"));
        let width = |line: &str| {
            let rest = line.split_once(" width=\"")?.1;
            rest.split_once('"')?.0.parse().ok()
        };
        bars.filter_map(width).collect()
    }

    #[test]
    fn bars_grow_with_the_logarithm_and_the_fastest_is_first() {
        let svg = warm_execute(&results()).expect("there are figures");
        let widths = widths(&svg);
        assert_eq!(widths.len(), 3);
        assert!(widths.is_sorted(), "{widths:?}");
        // 10 µs to 100 ms are four decades on 480 units: 50 µs is 0.699 decades.
        assert!((widths[0] - 83.9).abs() < 0.2, "{widths:?}");
        assert!(svg.find("raw Unix-socket REPL") < svg.find("docker exec"));
    }

    #[test]
    fn every_decade_has_its_line() {
        let svg = warm_execute(&results()).expect("there are figures");
        for tick in [">10 µs<", ">100 µs<", ">1 ms<", ">10 ms<", ">100 ms<"] {
            assert!(svg.contains(tick), "{tick}");
        }
    }

    #[test]
    fn ratios_are_to_cellblock_and_markup_is_escaped() {
        let svg = warm_execute(&results()).expect("there are figures");
        assert!(svg.contains("60.00 ms (300×)"), "{svg}");
        assert_eq!(escaped("`a<b` & c"), "a&lt;b &amp; c");
    }

    #[test]
    fn no_figures_make_no_picture() {
        assert_eq!(warm_execute(&Results::default()), None);
    }
}
