//! Prices for the use of a cluster, from the setting `prices`.

use honeycomb_types::TierClass;
use serde_json::{Map, Value};

/// Names of prices, and their units.
const NAMES: &str = "memory, nvme, ssd, hdd, object (a gigabyte in this tier for an hour), \
    to-memory, to-nvme, \
                     to-ssd, to-hdd, to-object (a gigabyte demoted or promoted to this tier), \
                     moved (a \
                     gigabyte moved to another server)";

/// Memory, and the classes of tiers, by their codes.
pub const TIERS: usize = TierClass::ALL.len() + 1;

/// The name of the tier with this code.
pub fn tier_name(code: usize) -> &'static str {
    let class = u8::try_from(code).ok().and_then(TierClass::from_code);
    class.map_or("memory", TierClass::name)
}

/// Prices in any unit of money.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Prices {
    /// Price of a gigabyte for an hour, by tier.
    there: [f64; TIERS],
    /// Price of a gigabyte demoted or promoted, by target tier.
    came: [f64; TIERS],
    /// Price of a gigabyte moved to another server.
    moved: f64,
}

impl Prices {
    /// Parses `memory=0.008,nvme=0.0001`. Other prices are 0; the price of memory is required.
    pub fn parse(text: &str) -> Result<Prices, String> {
        let mut prices = Prices { there: [0.0; TIERS], came: [0.0; TIERS], moved: 0.0 };
        let mut memory = false;
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let (name, price) = part
                .split_once('=')
                .ok_or_else(|| format!("'{part}' is not NAME=PRICE, such as memory=0.008"))?;
            let price = match price.trim().parse::<f64>() {
                Ok(price) if price.is_finite() && price >= 0.0 => price,
                _ => return Err(format!("the price '{price}' is not a number from 0 up")),
            };
            let name = name.trim();
            let (tier, prices_of) = match name.strip_prefix("to-") {
                Some(tier) => (tier, &mut prices.came),
                None => (name, &mut prices.there),
            };
            if name == "moved" {
                prices.moved = price;
                continue;
            }
            let Some(code) = (0..TIERS).find(|&code| tier_name(code) == tier) else {
                return Err(format!("unknown price '{name}'; the prices are: {NAMES}"));
            };
            prices_of[code] = price;
            memory |= name == "memory";
        }
        match memory {
            true => Ok(prices),
            false => Err("the price of memory is missing; add one such as memory=0.008".to_owned()),
        }
    }

    /// The cost of gigabyte-seconds in a tier.
    pub fn there(&self, tier: usize, gb_seconds: f64) -> f64 {
        self.there[tier] * gb_seconds / 3600.0
    }

    /// The cost of bytes demoted or promoted to a tier.
    pub fn came(&self, tier: usize, bytes: u64) -> f64 {
        self.came[tier] * bytes as f64 / 1e9
    }

    /// The cost of bytes moved to other servers.
    pub fn moved(&self, bytes: u64) -> f64 {
        self.moved * bytes as f64 / 1e9
    }

    /// The JSON form.
    pub fn json(&self) -> Value {
        let mut all = Map::new();
        for code in 0..TIERS {
            all.insert(tier_name(code).to_owned(), self.there[code].into());
            all.insert(format!("to-{}", tier_name(code)), self.came[code].into());
        }
        all.insert("moved".to_owned(), self.moved.into());
        Value::Object(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prices_are_read_and_wrong_ones_refused() {
        let prices = Prices::parse("memory = 3.6").unwrap();
        assert!((prices.there(0, 1000.0) - 1.0).abs() < 1e-12);
        assert!(prices.there(1, 1000.0).abs() < 1e-12, "a price that is not named must be 0");
        let prices = Prices::parse("memory=0, moved=2, hdd=7.2, to-object=3").unwrap();
        assert!((prices.moved(500_000_000) - 1.0).abs() < 1e-12);
        assert!((prices.there(3, 1000.0) - 2.0).abs() < 1e-12);
        assert!((prices.came(4, 2_000_000_000) - 6.0).abs() < 1e-12);
        assert_eq!(prices.json()["to-object"], 3.0);
        let wrong = ["", "memory", "memory=-1", "memory=much", "memory=1,gold=1", "memory=inf"];
        for wrong in wrong.into_iter().chain(["memory=1,to-gold=1", "nvme=1", "to-memory=1"]) {
            assert!(Prices::parse(wrong).is_err(), "{wrong:?} was accepted");
        }
    }
}
