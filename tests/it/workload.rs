//! Traffic as its callers see it: generated loads.

use fleetcast::engine::request::RequestId;
use fleetcast::units::{SimTime, Span};
use fleetcast::workload::spec::{ArrivalSpec, BodySpec, LengthSpec, SharedPrefixSpec, TrafficSpec};
use fleetcast::workload::{Arrival, ArrivalSource, Load, WorkloadError, open_load};
use proptest::prelude::*;

fn open(spec: &TrafficSpec, seed: u64) -> Box<dyn ArrivalSource> {
    match open_load(spec, seed) {
        Ok(Load::Open(source)) => source,
        Ok(Load::Closed { .. }) => panic!("{spec:?} became a closed loop"),
        Err(error) => panic!("{error}"),
    }
}

/// Up to `n` arrivals.
fn take(source: &mut dyn ArrivalSource, n: u64) -> Result<Vec<Arrival>, WorkloadError> {
    (0..n).map(RequestId).map_while(|id| source.next_arrival(id).transpose()).collect()
}

fn generated(arrivals: ArrivalSpec, requests: Option<u64>) -> TrafficSpec {
    let bodies = BodySpec {
        input_tokens: LengthSpec::Uniform { min: 1, max: 900 },
        output_tokens: LengthSpec::Fixed(256),
        shared_prefix: None,
    };
    TrafficSpec::Open { arrivals, requests, bodies }
}

#[test]
fn an_open_load_ends_after_its_requests_and_stays_ended() {
    let spec = generated(ArrivalSpec::Poisson { rate_rps: 3.0 }, Some(5));
    let mut source = open(&spec, 1);
    assert_eq!(take(&mut *source, 100).unwrap().len(), 5);
    assert_eq!(source.next_arrival(RequestId(5)), Ok(None));
}

#[test]
fn a_rate_curve_ends_after_its_last_window_and_stays_ended() {
    let window = Span::from_micros(2_000_000);
    let arrivals =
        ArrivalSpec::RateCurve { window, rates_rps: vec![50.0], scale: 2.0, repeat: false };
    let mut source = open(&generated(arrivals, None), 1);
    let all = take(&mut *source, 10_000).unwrap();
    assert!(all.len().abs_diff(200) < 60, "{} arrivals", all.len());
    assert!(all.iter().all(|a| a.at < SimTime(window.0)));
    assert_eq!(source.next_arrival(RequestId(0)), Ok(None));
}

#[test]
fn a_closed_load_hands_out_its_bodies() {
    let TrafficSpec::Open { bodies, .. } = generated(ArrivalSpec::Poisson { rate_rps: 1.0 }, None)
    else {
        unreachable!("generated() gives an open load")
    };
    let think = Span::from_micros(5);
    let closed = |concurrency| TrafficSpec::Closed {
        concurrency,
        requests: 2,
        think,
        bodies: bodies.clone(),
    };
    let Ok(Load::Closed { concurrency, think: found, bodies: mut source }) =
        open_load(&closed(4), 1)
    else {
        panic!("not a closed load")
    };
    assert_eq!((concurrency, found), (4, think));
    assert_eq!(source.next_body(RequestId(0)).unwrap().unwrap().output_tokens, 256);
    assert!(source.next_body(RequestId(1)).unwrap().is_some());
    assert!(source.next_body(RequestId(2)).unwrap().is_none());
    assert!(open_load(&closed(0), 1).is_err());
}

#[test]
fn the_same_seed_repeats_and_another_does_not() {
    let spec = generated(ArrivalSpec::Gamma { rate_rps: 9.0, cv: 2.0 }, Some(200));
    let draw = |seed| take(&mut *open(&spec, seed), 200).unwrap();
    assert_eq!(draw(5), draw(5));
    assert_ne!(draw(5), draw(6));
}

#[test]
fn changing_the_arrivals_leaves_the_bodies_alone() {
    let draw = |arrivals| -> Vec<_> {
        let arrivals = take(&mut *open(&generated(arrivals, Some(100)), 3), 100).unwrap();
        arrivals.into_iter().map(|a| a.body).collect()
    };
    assert_eq!(
        draw(ArrivalSpec::Poisson { rate_rps: 2.0 }),
        draw(ArrivalSpec::Gamma { rate_rps: 80.0, cv: 3.0 })
    );
}

fn arrival_specs() -> impl Strategy<Value = ArrivalSpec> {
    let rate = 1e-3..1e6_f64;
    prop_oneof![
        rate.clone().prop_map(|rate_rps| ArrivalSpec::Constant { rate_rps }),
        rate.clone().prop_map(|rate_rps| ArrivalSpec::Poisson { rate_rps }),
        (rate.clone(), 1e-3..1e3_f64)
            .prop_map(|(rate_rps, cv)| ArrivalSpec::Gamma { rate_rps, cv }),
        (
            1..u64::MAX >> 20,
            prop::collection::vec(prop_oneof![Just(0.0), rate], 1..9),
            any::<bool>()
        )
            .prop_map(|(ps, mut rates_rps, repeat)| {
                rates_rps.push(1.0);
                ArrivalSpec::RateCurve { window: Span(ps), rates_rps, scale: 1.5, repeat }
            }),
    ]
}

fn length_specs() -> impl Strategy<Value = (LengthSpec, u32, u32)> {
    (0_u32..5_000, 1_u32..5_000, 0.0..9e3_f64, 0.0..4.0_f64, 0_u8..5).prop_map(
        |(min, more, centre, spread, kind)| {
            let max = min + more;
            let spec = match kind {
                0 => LengthSpec::Fixed(max),
                1 => LengthSpec::Uniform { min, max },
                2 => LengthSpec::Normal { mean: centre, sd: spread * 1e3, min, max },
                3 => LengthSpec::LogNormal { median: centre, sigma: spread, min, max },
                _ => LengthSpec::Quantiles {
                    probabilities: vec![0.0, 0.3, 1.0],
                    tokens: vec![min, min, max],
                },
            };
            (spec, min.max(1), max)
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn generated_times_never_fall_and_lengths_stay_in_bounds(
        arrivals in arrival_specs(),
        input in length_specs(),
        output in length_specs(),
        prefix in prop::option::of((1_u32..50, 0_u32..6_000, 0.0..2.0_f64)),
        seed: u64,
    ) {
        let shared_prefix =
            prefix.map(|(groups, tokens, zipf)| SharedPrefixSpec { groups, tokens, zipf });
        let bodies = BodySpec { input_tokens: input.0, output_tokens: output.0, shared_prefix };
        let spec = TrafficSpec::Open { arrivals, requests: Some(200), bodies };
        let all = take(&mut *open(&spec, seed), 300).unwrap();
        prop_assert!(all.len() <= 200);
        prop_assert!(all.is_sorted_by_key(|a| a.at));
        for Arrival { body, .. } in &all {
            prop_assert!((input.1..=input.2).contains(&body.prompt.len()));
            prop_assert!((output.1..=output.2).contains(&body.output_tokens));
            let sum: u32 = body.prompt.segments().iter().map(|s| s.len).sum();
            prop_assert_eq!(sum, body.prompt.len());
        }
    }
}
