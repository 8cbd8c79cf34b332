//! tmp
use honeycomb_block::{Backing, Reclaimer};
use honeycomb_structures::*;
use honeycomb_wire::{Op, Status};
#[allow(clippy::disallowed_methods)]
fn main() {
    let size: usize = std::env::args().nth(1).unwrap().parse::<usize>().unwrap() << 20;
    let len: usize = std::env::args().nth(2).unwrap().parse().unwrap();
    let mut kv = KvBlock::new(size, 0, u64::MAX, 1024);
    let mut b = Backing::map(size, &Reclaimer::inline()).unwrap();
    b.slice_mut(0..size).fill(0);
    let value = vec![7; len];
    let mut bins = vec![(0u64, 0u128, 0u128, 0u32); 101];
    for i in 0u64.. {
        let mut k = [0u8; 17];
        k[1..9].copy_from_slice(&i.to_le_bytes());
        let t = std::time::Instant::now();
        let Outcome::Done(a) = kv.apply(&mut b, Ticket(0), Op::KvPut, &k, &value) else { panic!() };
        let e = t.elapsed().as_nanos();
        if a.status != Status::Ok { break }
        let bin = &mut bins[kv.bytes_used() as usize * 100 / size];
        bin.0 += 1; bin.1 += e; bin.2 = bin.2.max(e); if e > 20000 { bin.3 += 1 }
    }
    for (i, (n, t, m, slow)) in bins.iter().enumerate() {
        if *n > 0 && (i % 5 == 0 || i > 72) { println!("{i}% n={n} mean {} ns max {} us slow(>20us) {slow}", t / *n as u128, m / 1000); }
    }
    println!("regions {}", kv.regions().count());
}
