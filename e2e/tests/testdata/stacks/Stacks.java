import com.zaxxer.hikari.HikariConfig;
import com.zaxxer.hikari.HikariDataSource;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.sql.Connection;
import java.sql.SQLException;
import java.sql.Statement;

/** Does as stacks.py does, with HikariCP. */
public class Stacks {
	public static void main(String[] arguments) throws Exception {
		HikariConfig config = new HikariConfig();
		config.setJdbcUrl("jdbc:postgresql://" + arguments[0] + "/app");
		config.setUsername("app");
		config.setPassword(System.getenv("PGPASSWORD"));
		config.setInitializationFailTimeout(-1);
		config.setConnectionTimeout(120_000);
		HikariDataSource pool = null;
		BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
		for (String line = lines.readLine(); line != null; line = lines.readLine()) {
			if (pool == null) {
				pool = new HikariDataSource(config); // it connects at once
			}
			int errors = 0;
			String first = "";
			while (errors < 10) {
				try (Connection connection = pool.getConnection(); Statement statement = connection.createStatement()) {
					statement.execute("select 1");
					break;
				} catch (SQLException error) {
					first = errors++ == 0 ? error.getMessage().replaceAll("\\s+", " ") : first;
				}
			}
			System.out.println(line + "\tHikariCP\t" + errors + "\t" + first + "\n" + line + "\tend");
		}
	}
}
