"""What tests have in common that run Spark in processes of their own."""

# A short run is over before the better compiler of the JVM pays.
QUICK_JAVA = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1"}
QUICK_START = [word for name, value in QUICK_JAVA.items() for word in ("--conf", f"{name}={value}")]
